#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks a golden case with its gradients on the first OpenCL device: in one of three types, and in all where
ATTUNE_TEST_SCALE is above 1, since a driver on the CPU compiles for some seconds each.
    opencl.py NUMBER PROGRAM CASE
NUMBER, that of the case, draws the type. Exit status 77 (skipped) where there is no device, unless ATTUNE_REQUIRE names opencl."""
import os
import subprocess
import sys

TYPES = ['f32', 'f16', 'bf16']
number, program, case = sys.argv[1:]
types = TYPES if float(os.environ.get('ATTUNE_TEST_SCALE', 1)) > 1 else [TYPES[int(number) % len(TYPES)]]
found = [subprocess.run([program, 'check', '--grad', '--case', case, '--device', 'opencl:0', '--dtype', kind], check=False).returncode
         for kind in types]
if set(found) == {3} and 'opencl' not in os.environ.get('ATTUNE_REQUIRE', '').split(','):
    sys.exit(77)
sys.exit(max(found, key=abs))
