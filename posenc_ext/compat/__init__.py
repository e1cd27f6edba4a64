"""The names and signatures of other libraries, for models that use them already.

`transformers`, `flash_attn`, `llama` and `vllm` translate arguments to the functions of this
package. None of those libraries is imported.
"""
