#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Reads the files as built: what the compiler and the linker were asked for must be in them."""
import platform
import re
import subprocess
import sys


def said(*command):
    return subprocess.run(command, text=True, check=True, capture_output=True).stdout


def missing(path, program):
    """The protections that a shared library or program lacks."""
    header, dynamic = said('readelf', '-hlW', path), said('readelf', '-dW', path)
    symbols = said('readelf', '--dyn-syms', '-W', path)
    stack = re.search(r'GNU_STACK.*\b([RWE]{1,3})\s+0x', header)
    tests = {
        'a stack that is not executable': stack and 'E' not in stack[1],
        'RELRO': 'GNU_RELRO' in header,
        'binding at load (-z now)': re.search(r'BIND_NOW|FLAGS_1.*\bNOW\b', dynamic),
        'no relocations in code': 'TEXTREL' not in dynamic,
        'no segment both written and executed': not re.search(r'LOAD.*\bRWE\b', header),
        'the stack protector': '__stack_chk_fail' in symbols,
        'FORTIFY_SOURCE': re.search(r'UND __\w+_chk\b', symbols.replace('__stack_chk_fail', '')),
    }
    if program:
        tests['PIE'] = re.search(r'Type:\s+DYN', header) and 'PIE' in dynamic
    elif platform.machine() == 'x86_64':
        # The property in the file needs the C library's own files to have it, the code does not.
        code = said('objdump', '-d', '--disassemble=attune_last_error', path)
        tests['landing pads (-fcf-protection)'] = 'endbr64' in code
    return [name for name, holds in tests.items() if not holds]


def main():
    library, program = sys.argv[1:]
    found = [f'{path}: {name} is missing' for path in (library, program) for name in missing(path, path == program)]
    print('\n'.join(found))
    return bool(found)


sys.exit(main())
