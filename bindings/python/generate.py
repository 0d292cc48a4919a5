#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes attune/_abi.py: what the public headers declare, for ctypes.
    generate.py OUTPUT HEADER...
Runs when the package is built, so that no second copy of the declarations exists. It reads the C of these headers, not C at
large: what it does not know is an error. tests/test_abi.py compares the result with what a C compiler makes of the headers."""
import pathlib
import re
import sys

SCALARS = {
    'bool': 'c_bool', 'char': 'c_char', 'int': 'c_int', 'float': 'c_float', 'double': 'c_double', 'size_t': 'c_size_t',
    **{f'{sign}int{bits}_t': f'c_{sign}int{bits}' for sign in ('', 'u') for bits in (8, 16, 32, 64)},
}
NUMBER = re.compile(r'(?:UINT32_C\()?(0x[0-9a-fA-F]+|-?\d+)\)?$')


class Unknown(Exception):
    pass


class Headers:
    """Declarations, by kind and in the order of the headers."""

    def __init__(self):
        self.constants, self.structs, self.callbacks, self.functions = {}, {}, {}, {}
        self.enums, self.opaque = set(), set()

    def read(self, text):
        text = re.sub(r'/\*.*?\*/', ' ', text, flags=re.S)
        for name, value in re.findall(r'^#define (ATTUNE_[A-Z0-9_]+)[ \t\\\n]+(\S+)[ \t]*$', text, re.M):
            if number := NUMBER.match(value):
                self.constants[name] = int(number[1], 0)
        text = re.sub(r'^#(?:.*\\\n)*.*$', '', text, flags=re.M)
        text = re.sub(r'extern "C" \{|\n\}\s*$', '', text)
        for statement in self.statements(text):
            self.declare(' '.join(statement.split()))

    @staticmethod
    def statements(text):
        """The text between semicolons that are in no braces."""
        depth = begin = 0
        for place, sign in enumerate(text):
            depth += (sign == '{') - (sign == '}')
            if sign == ';' and not depth:
                yield text[begin:place]
                begin = place + 1

    def declare(self, statement):
        if found := re.match(r'typedef enum (\w+) \{(.*)\} \1$', statement):
            self.enums.add(found[1])
            for item in filter(None, map(str.strip, found[2].split(','))):
                name, value = map(str.strip, item.split('='))
                self.constants[name] = int(value, 0)
        elif found := re.match(r'typedef struct (\w+) \1$', statement):
            self.opaque.add(found[1])
        elif found := re.match(r'typedef struct (\w+) \{(.*)\} \1$', statement):
            self.structs[found[1]] = [field for part in found[2].split(';') if part.strip() for field in self.fields(part.strip())]
        elif found := re.match(r'typedef (.+?)\(\*(\w+)\)\((.*)\)$', statement):
            self.callbacks[found[2]] = self.callback(found[1], found[3])
        elif found := re.match(r'ATTUNE_API (.+?)(\w+)\((.*)\)$', statement):
            result = None if found[1].strip() == 'void' else self.type_of(found[1])
            self.functions[found[2]] = (result, self.parameters(found[3]))
        else:
            raise Unknown(statement)

    def parameters(self, text):
        return [] if text.strip() == 'void' else [self.parameter(part) for part in self.split(text)]

    @staticmethod
    def split(text):
        """At the commas that are in no parentheses."""
        depth, parts = 0, ['']
        for sign in text:
            depth += (sign == '(') - (sign == ')')
            if sign == ',' and not depth:
                parts.append('')
            else:
                parts[-1] += sign
        return parts

    def parameter(self, text):
        if found := re.match(r'\s*(.+?)\(\*\w+\)\((.*)\)$', text):
            return self.callback(found[1], found[2])
        found = re.match(r'\s*(.*?[\s*])(\w+)(\[\w*\])?\s*$', text)
        if not found:
            raise Unknown(text)
        return self.type_of(found[1] + ('*' if found[3] else ''))

    def callback(self, result, parameters):
        result = None if result.strip() == 'void' else self.type_of(result)
        return f'CFUNCTYPE({", ".join(map(str, [result, *self.parameters(parameters)]))})'

    def fields(self, text):
        """(name, type) of each name in one declaration of a struct."""
        if found := re.match(r'(.+?)\(\*(\w+)\)\((.*)\)$', text):
            yield found[2], self.callback(found[1], found[3])
            return
        first, *others = text.split(',')
        found = re.match(r'(.*?)(\**)\s*(\w+)((?:\[\w+\])?)\s*$', first)
        base = found[1]
        for declarator in [found[2] + found[3] + found[4], *others]:
            stars, name, length = re.match(r'\s*(\**)\s*(\w+)(?:\[(\w+)\])?\s*$', declarator).groups()
            kind = self.type_of(base + stars)
            yield name, f'{kind} * {self.constants.get(length, length)}' if length else kind

    def type_of(self, text):
        words = re.sub(r'\bconst\b', ' ', text).replace('*', ' * ').split()
        base, stars = words[0], len(words) - 1
        if set(words[1:]) - {'*'}:
            raise Unknown(text)
        if base in self.opaque or base == 'void':
            if not stars:
                raise Unknown(text)
            kind, stars = 'c_void_p', stars - 1
        elif base == 'char' and stars:
            kind, stars = 'c_char_p', stars - 1
        elif base in self.enums:
            kind = 'c_int'
        elif base in SCALARS:
            kind = SCALARS[base]
        elif base in self.structs or base in self.callbacks:
            kind = base
        else:
            raise Unknown(text)
        return 'POINTER(' * stars + kind + ')' * stars


def write(headers):
    yield '"""Made from the public headers by generate.py."""'
    yield '# mypy: disable-error-code="misc,valid-type"'
    yield 'from ctypes import *'
    yield 'from typing import Any'
    yield ''
    for name, value in headers.constants.items():
        yield f'{name} = {value}'
    for name, kind in headers.callbacks.items():
        yield f'{name}: Any = {kind}'
    for name, fields in headers.structs.items():
        yield f'\n\nclass {name}(Structure):'
        for field, _ in fields:
            yield f'    {field}: Any'
    yield '\n'
    for name, fields in headers.structs.items():
        yield f'{name}._fields_ = ['
        for field, kind in fields:
            yield f'    ({field!r}, {kind}),'
        yield ']'
    yield '\n# Result and parameters of each function.'
    yield 'PROTOTYPES: dict[str, tuple[Any, list[Any]]] = {'
    for name, (result, parameters) in headers.functions.items():
        yield f'    {name!r}: ({result}, [{", ".join(parameters)}]),'
    yield '}'


if __name__ == '__main__':
    headers = Headers()
    for path in sys.argv[2:]:
        headers.read(pathlib.Path(path).read_text())
    pathlib.Path(sys.argv[1]).write_text('\n'.join(write(headers)) + '\n')
