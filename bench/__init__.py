"""Timings of posenc_ext against the limits of the machine and against its peers."""
