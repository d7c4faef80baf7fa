#!/bin/sh
# Everything that needs a GPU, in one command of less than ten minutes: kernel tests on the device, conformance, sanitizers, graphs, measurements
# beside other libraries. What was done already is not done again; the table comes last. tests/gpu/README.md says more.
#
#     tests/gpu/run.sh [--out FOLDER] [--results FOLDER] [--build FOLDER] [--stages a,b] [--seconds N] [--fresh]
#
# Ends with 0: all that ran passed; 1: something failed; 77: no GPU, nothing was measured.
set -eu
here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
export PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
exec "${PYTHON:-python3}" "$here/run.py" "$@"
