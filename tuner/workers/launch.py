"""Becomes another program that dies with the tuner: ``python launch.py TUNER_PID PROGRAM ARG...`` (Linux).

Run as a file and without site packages: it starts in a few milliseconds.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(sys.argv[1]):  # The tuner died before the request was in force.
        sys.exit(1)
    os.execv(sys.argv[2], sys.argv[2:])
