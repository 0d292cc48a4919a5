#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compiles a shader whose 16-bit floats are bfloat16, as a C header: bfloat16.py NAME OUTPUT COMPILER [ARGUMENT...]

The compiler (glslang 13) does not know the type. It compiles the shader with float16_t, of which a module declares one
type; this gives that type the encoding of bfloat16, and the module the capabilities. So the shader may convert such
numbers, and multiply matrices of them, and nothing else (SPV_KHR_bfloat16).
"""
import os
import struct
import subprocess
import sys
import tempfile

OP_EXTENSION, OP_CAPABILITY, OP_TYPE_FLOAT = 10, 17, 22
FLOAT16, BFLOAT16_TYPE, BFLOAT16_COOPERATIVE_MATRIX = 9, 5116, 5118
BFLOAT16_ENCODING = 0


def instruction(opcode, *operands):
    return [(len(operands) + 1) << 16 | opcode, *operands]


def text(string):
    data = string.encode() + b"\0"
    data += b"\0" * (-len(data) % 4)
    return struct.unpack(f"<{len(data) // 4}I", data)


def converted(words):
    result, at, types, last = list(words[:5]), 5, 0, None
    while at < len(words):
        opcode, length = words[at] & 0xFFFF, words[at] >> 16
        operands = words[at + 1 : at + length]
        if last == OP_CAPABILITY and opcode != OP_CAPABILITY:
            result += instruction(OP_EXTENSION, *text("SPV_KHR_bfloat16"))
        if opcode == OP_CAPABILITY and operands[0] == FLOAT16:
            result += instruction(OP_CAPABILITY, BFLOAT16_TYPE) + instruction(OP_CAPABILITY, BFLOAT16_COOPERATIVE_MATRIX)
        elif opcode == OP_TYPE_FLOAT and operands[1] == 16:
            result += instruction(OP_TYPE_FLOAT, *operands, BFLOAT16_ENCODING)
            types += 1
        else:
            result += words[at : at + length]
        last, at = opcode, at + length
    if types != 1:
        sys.exit(f"the module declares {types} float types of 16 bits, not one")
    return result


def main():
    name, output, *command = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        module = os.path.join(folder, "module.spv")
        subprocess.run([*command, "-o", module], check=True)
        with open(module, "rb") as file:
            data = file.read()
    words = converted(struct.unpack(f"<{len(data) // 4}I", data))
    if output.endswith(".spv"):
        with open(output, "wb") as file:
            file.write(struct.pack(f"<{len(words)}I", *words))
        return
    lines = [",".join(f"0x{word:08x}" for word in words[i : i + 8]) for i in range(0, len(words), 8)]
    with open(output, "w", encoding="ascii") as file:
        file.write(f"#pragma once\nconst uint32_t {name}[] = {{\n" + ",\n".join(lines) + "\n};\n")


main()
