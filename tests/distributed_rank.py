"""One rank: `python distributed_rank.py RANK WORLD_SIZE FOLDER` runs the checks in order.

Writes FOLDER/RANK.json, name to "" or a traceback, and stops at the first failure: ranks that have
parted ways cannot go on together.
"""

import datetime
import json
import os
import pathlib
import sys
import traceback


def main(rank: int, world_size: int, folder: pathlib.Path) -> None:
    import torch
    import torch.distributed as dist
    from distributed_models import CHECKS

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder / 'rendezvous'}",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=180),
    )
    results = {}
    for name, check in CHECKS[world_size].items():
        try:
            check()
            results[name] = ""
        except Exception:
            results[name] = traceback.format_exc()
        (folder / f"{rank}.json").write_text(json.dumps(results))
        if results[name]:
            break
    else:
        dist.barrier()
    # Not through the destructors of gloo, which may abort while another rank is still closing.
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[3]))
