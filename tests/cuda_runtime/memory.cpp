// The stand-in: memory, copies, streams, events and graphs.
#include <cstdlib>
#include <cstring>
#include <map>
#include <vector>

#include "stand_in.h"

using namespace stand_in;

namespace {

std::map<char*, std::pair<size_t, int>> device_memory;  // size, device
std::map<char*, size_t> pinned_memory;
std::vector<cudaStream_t> streams;
int captures = 0;

template <class Value>
bool holds(const std::map<char*, Value>& blocks, const void* pointer) {
  const std::lock_guard lock(mutex);
  auto after = blocks.upper_bound(static_cast<char*>(const_cast<void*>(pointer)));
  if (after == blocks.begin()) return false;
  const auto& [begin, value] = *--after;
  if constexpr (std::is_same_v<Value, size_t>)
    return pointer < begin + value;
  else
    return pointer < begin + value.first;
}

cudaError_t copy(void* to, const void* from, size_t bytes, cudaStream_t stream, bool waits) {
  const bool down = !holds(device_memory, to), up = !holds(device_memory, from);
  const bool pageable = (down && !holds(pinned_memory, to)) || (up && !holds(pinned_memory, from));
  const char* kind = up ? "up" : down ? "down" : "across";
  if (capturing(stream) && (pageable || waits))
    return fail(cudaErrorStreamCaptureUnsupported, "a copy of pageable memory in a capture");
  note("copy %s %zu %s %d %llu", kind, bytes, pageable ? "pageable" : "-", current, number(stream));
  if (!capturing(stream)) memmove(to, from, bytes);
  return cudaSuccess;
}

cudaError_t start_capture(cudaStream_t stream) {
  if (!stream || stream->capture) return fail(cudaErrorStreamCaptureUnsupported, "begin capture");
  stream->capture = ++captures;
  stream->origin = true;
  note("capture %d %llu", current, number(stream));
  return cudaSuccess;
}

}  // namespace

extern "C" {

// Memory.
cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  *pointer = aligned_alloc(512, (bytes + 511) / 512 * 512);
  memset(*pointer, 0, bytes);
  const std::lock_guard lock(mutex);
  device_memory[static_cast<char*>(*pointer)] = {bytes, current};
  note("malloc %zu %d", bytes, current);
  return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
  const std::lock_guard lock(mutex);
  if (device_memory.erase(static_cast<char*>(pointer))) note("free %d", current);
  free(pointer);
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  *pointer = calloc(1, bytes);
  const std::lock_guard lock(mutex);
  pinned_memory[static_cast<char*>(*pointer)] = bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  const std::lock_guard lock(mutex);
  pinned_memory.erase(static_cast<char*>(pointer));
  free(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return *free = *total = size_t{140} << 30, cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* result, const void* pointer) {
  *result = {};
  const std::lock_guard lock(mutex);
  result->type = holds(device_memory, pointer)   ? cudaMemoryTypeDevice
                 : holds(pinned_memory, pointer) ? cudaMemoryTypeHost
                                                 : cudaMemoryTypeUnregistered;
  if (result->type == cudaMemoryTypeDevice) {
    auto after = device_memory.upper_bound(static_cast<char*>(const_cast<void*>(pointer)));
    result->device = (--after)->second.second;
  }
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  return copy(to, from, bytes, nullptr, true);
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return copy(to, from, bytes, stream, false);
}
cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes,
                                cudaStream_t stream) {
  return copy(to, from, bytes, stream, false);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return memset(to, value, bytes), cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  if (foreign(stream)) return fail(cudaErrorInvalidResourceHandle, "memset: stream of a device");
  note("memset %zu %d %llu", bytes, current, number(stream));
  if (!capturing(stream)) memset(to, value, bytes);
  return cudaSuccess;
}

// Streams and events.
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  const std::lock_guard lock(mutex);
  streams.push_back(*stream = new CUstream_st{current});
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return cudaStreamCreateWithPriority(stream, flags, 0);
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return cudaStreamCreateWithPriority(stream, 0, 0);
}
cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamGetPriority(cudaStream_t, int* value) { return *value = 0, cudaSuccess; }
cudaError_t cudaStreamQuery(cudaStream_t) { return cudaSuccess; }
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (capturing(stream)) return fail(cudaErrorStreamCaptureUnsupported, "cudaStreamSynchronize");
  note("sync stream %d %llu", current, number(stream));
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  note("wait %llu %llu", number(stream), number(event));
  if (!stream || stream->capture == event->capture) return cudaSuccess;
  if (stream->capture) return fail(cudaErrorStreamCaptureIsolation, "wait for what is no capture");
  stream->capture = event->capture;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new CUevent_st, cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t event) { return delete event, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (foreign(stream)) return fail(cudaErrorInvalidResourceHandle, "record: stream of a device");
  event->capture = stream ? stream->capture : 0;
  note("record %llu %llu", number(stream), number(event));
  return cudaSuccess;
}
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}
cudaError_t cudaEventQuery(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return note("sync event"), cudaSuccess; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  return *milliseconds = 1, cudaSuccess;
}

// Graphs: a capture is written down like the calls themselves, and replays do nothing.
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  return start_capture(stream);
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status = capturing(stream) ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** nodes, const cudaGraphEdgeData** edges,
                                     size_t* count) {
  cudaStreamIsCapturing(stream, status);
  if (id) *id = stream ? stream->capture : 0;
  if (graph) *graph = reinterpret_cast<cudaGraph_t>(&captures);
  if (nodes) *nodes = nullptr;
  if (edges) *edges = nullptr;
  if (count) *count = 0;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (!stream || !stream->origin) return fail(cudaErrorStreamCaptureUnmatched, "end capture");
  const int ended = stream->capture;
  for (cudaStream_t each : streams)
    if (each->capture == ended) each->capture = 0, each->origin = false;
  *graph = reinterpret_cast<cudaGraph_t>(&captures);
  note("captured");
  return cudaSuccess;
}
cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }
cudaError_t cudaGraphGetNodes(cudaGraph_t, cudaGraphNode_t*, size_t* count) {
  return *count = 1, cudaSuccess;
}
cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t, unsigned long long) {
  return *exec = reinterpret_cast<cudaGraphExec_t>(&captures), cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t, cudaStream_t stream) {
  return note("replay %llu", number(stream)), cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }

cudaError_t cudaDeviceSynchronize() {
  note("sync device %d", current);
  for (cudaStream_t stream : streams)
    if (capturing(stream)) return fail(cudaErrorStreamCaptureUnsupported, "cudaDeviceSynchronize");
  return cudaSuccess;
}
}
