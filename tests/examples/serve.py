#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Serves a model from a GGUF file by examples/serve.c, in each type of weights, and compares the tokens with those of the same
model computed here; then damaged files, which must be refused.
    serve.py PROGRAM"""
import math
import pathlib
import random
import struct
import subprocess
import sys
import tempfile

WIDTH, HIDDEN, HEADS, KV_HEADS, HEAD, VOCABULARY, LAYERS, CONTEXT = 32, 64, 4, 2, 8, 40, 2, 64
EPSILON, BASE = 1e-3, 500.0
F32, F16, Q8_0, BF16 = 0, 1, 8, 30
PROMPTS = [[1, 2, 3, 4, 5, 6, 7], [39], [8, 8, 8, 0, 17], [20, 30]]


def encode(values, kind):
    """The bytes of a tensor, and the values that they stand for."""
    if kind == F32:
        return struct.pack(f'<{len(values)}f', *values), list(struct.unpack(f'<{len(values)}f', struct.pack(f'<{len(values)}f', *values)))
    if kind == F16:
        data = struct.pack(f'<{len(values)}e', *values)
        return data, list(struct.unpack(f'<{len(values)}e', data))
    if kind == BF16:
        bits = [struct.unpack('<I', struct.pack('<f', value))[0] >> 16 for value in values]
        return struct.pack(f'<{len(bits)}H', *bits), [struct.unpack('<f', struct.pack('<I', b << 16))[0] for b in bits]
    data, read = b'', []
    for at in range(0, len(values), 32):
        block = values[at:at + 32]
        scale = struct.unpack('<e', struct.pack('<e', max(map(abs, block)) / 127))[0]
        codes = [max(-127, min(127, round(value / scale))) for value in block]
        data += struct.pack('<e32b', scale, *codes)
        read += [scale * code for code in codes]
    return data, read


def make(kind, seed):
    """A GGUF file, and its weights by name."""
    draw = random.Random(seed)
    shapes = {'token_embd.weight': (VOCABULARY, WIDTH), 'output_norm.weight': (1, WIDTH), 'output.weight': (VOCABULARY, WIDTH),
              'rope_freqs.weight': (1, HEAD // 2)}
    for i in range(LAYERS):
        for name, rows, columns in (('attn_norm', 1, WIDTH), ('attn_q', HEADS * HEAD, WIDTH), ('attn_k', KV_HEADS * HEAD, WIDTH),
                                    ('attn_v', KV_HEADS * HEAD, WIDTH), ('attn_output', WIDTH, HEADS * HEAD), ('ffn_norm', 1, WIDTH),
                                    ('ffn_gate', HIDDEN, WIDTH), ('ffn_up', HIDDEN, WIDTH), ('ffn_down', WIDTH, HIDDEN)):
            shapes[f'blk.{i}.{name}.weight'] = (rows, columns)
    text = lambda word: struct.pack('<Q', len(word)) + word.encode()
    metadata = [text('general.architecture') + struct.pack('<I', 8) + text('llama'),
                text('tokenizer.ggml.tokens') + struct.pack('<IIQ', 9, 8, 2) + text('a') + text('bc'),
                text('tokenizer.ggml.scores') + struct.pack('<IIQ2f', 9, 6, 2, 0.5, 1.5),
                text('general.some_flag') + struct.pack('<I?', 7, True)]
    for name, value in (('general.alignment', 64), ('llama.block_count', LAYERS), ('llama.embedding_length', WIDTH),
                        ('llama.feed_forward_length', HIDDEN), ('llama.attention.head_count', HEADS),
                        ('llama.attention.head_count_kv', KV_HEADS), ('llama.context_length', CONTEXT)):
        metadata.append(text(name) + struct.pack('<II', 4, value))
    for name, value in (('llama.attention.layer_norm_rms_epsilon', EPSILON), ('llama.rope.freq_base', BASE)):
        metadata.append(text(name) + struct.pack('<If', 6, value))
    infos, data, weights = b'', b'', {}
    for name, (rows, columns) in shapes.items():
        here = kind if rows > 1 else F32
        values = [draw.uniform(0.7, 1.5) if rows == 1 else draw.gauss(0, columns ** -0.5) for _ in range(rows * columns)]
        encoded, weights[name] = encode(values, here)
        size = struct.pack('<IQ', 1, columns) if rows == 1 else struct.pack('<IQQ', 2, columns, rows)
        data += bytes(-len(data) % 64)
        infos += text(name) + size + struct.pack('<IQ', here, len(data))
        data += encoded
    head = b'GGUF' + struct.pack('<IQQ', 3, len(shapes), len(metadata)) + b''.join(metadata) + infos
    return head + bytes(-len(head) % 64) + data, weights, len(head)


def times(matrix, rows, vector):
    columns = len(vector)
    return [sum(a * b for a, b in zip(matrix[i * columns:(i + 1) * columns], vector)) for i in range(rows)]


def normed(vector, gain):
    size = math.sqrt(sum(x * x for x in vector) / len(vector) + struct.unpack('<f', struct.pack('<f', EPSILON))[0])
    return [g * x / size for g, x in zip(gain, vector)]


def rotated(vector, position, factors):
    out = []
    for i in range(0, len(vector), 2):
        pair = i % HEAD // 2
        turn = position * BASE ** (-2 * pair / HEAD) / factors[pair]
        x, y = vector[i:i + 2]
        out += [x * math.cos(turn) - y * math.sin(turn), x * math.sin(turn) + y * math.cos(turn)]
    return out


def feed(weights, cache, position, token):
    """The logits after a token; cache has the keys and values of each layer."""
    x = weights['token_embd.weight'][token * WIDTH:(token + 1) * WIDTH]
    factors = weights['rope_freqs.weight']
    for i in range(LAYERS):
        w = lambda name: weights[f'blk.{i}.{name}.weight']
        n = normed(x, w('attn_norm'))
        q = rotated(times(w('attn_q'), HEADS * HEAD, n), position, factors)
        cache[i].append((rotated(times(w('attn_k'), KV_HEADS * HEAD, n), position, factors), times(w('attn_v'), KV_HEADS * HEAD, n)))
        attended = []
        for h in range(HEADS):
            begin = h * KV_HEADS // HEADS * HEAD
            scores = [sum(a * b for a, b in zip(q[h * HEAD:(h + 1) * HEAD], k[begin:begin + HEAD])) / math.sqrt(HEAD) for k, _ in cache[i]]
            exps = [math.exp(score - max(scores)) for score in scores]
            attended += [sum(e * v[begin + j] for e, (_, v) in zip(exps, cache[i])) / sum(exps) for j in range(HEAD)]
        x = [a + b for a, b in zip(x, times(w('attn_output'), WIDTH, attended))]
        n = normed(x, w('ffn_norm'))
        gate, up = times(w('ffn_gate'), HIDDEN, n), times(w('ffn_up'), HIDDEN, n)
        x = [a + b for a, b in zip(x, times(w('ffn_down'), WIDTH, [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)]))]
    return times(weights['output.weight'], VOCABULARY, normed(x, weights['output_norm.weight']))


def generate(weights, prompt, count):
    cache, tokens = [[] for _ in range(LAYERS)], list(prompt)
    for position in range(len(prompt) + count - 1):
        logits = feed(weights, cache, position, tokens[position])
        if position >= len(prompt) - 1:
            tokens.append(max(range(VOCABULARY), key=logits.__getitem__))
    return tokens[len(prompt):]


program = sys.argv[1]


def serve(*words):
    return subprocess.run([program, *map(str, words)], capture_output=True, text=True, errors='replace')


with tempfile.TemporaryDirectory() as scratch:
    folder = pathlib.Path(scratch)
    prompts, path = folder / 'prompts', folder / 'model.gguf'
    prompts.write_text('\n'.join(' '.join(map(str, prompt)) for prompt in PROMPTS))
    for kind in F32, F16, BF16, Q8_0:
        data, weights, head = make(kind, kind)
        path.write_bytes(data)
        done = serve('--model', path, '--generate', 8, '--slots', 3, '--rows', 4, '--page', 3, '--check', prompts)
        if done.returncode:
            sys.exit(f'weights of type {kind}: {done.stdout}{done.stderr}')
        got = [list(map(int, line.split()[1:])) for line in done.stdout.splitlines()[:len(PROMPTS)]]
        for prompt, tokens in zip(PROMPTS, got):
            expected = generate(weights, prompt, len(tokens))
            if not tokens or tokens != expected:
                sys.exit(f'weights of type {kind}, prompt {prompt}: {tokens}, expected {expected}')
    # The last file, cut short or with a size or type that is another.
    draw = random.Random(1)
    for number in range(60):
        damaged = bytearray(data)
        if number % 2:
            del damaged[draw.randrange(len(damaged)) if number % 4 == 1 else draw.randrange(head):]
        else:
            damaged[draw.randrange(head)] ^= 1 << draw.randrange(8)
        path.write_bytes(damaged)
        done = serve('--model', path, '--generate', 2, prompts)
        if done.returncode not in ([1] if number % 2 else [0, 1]) or (done.returncode == 1 and not done.stderr):
            sys.exit(f'damaged file {number}: status {done.returncode}\n{done.stderr}')
    prompts.write_text('1 2 three\n')
    for words, message in ((('--model', folder / 'none'), 'cannot be read'), ((prompts,), 'expected token numbers'),
                           (('--pages', 1, '--page', 1), 'too few'), (('--generate', 500), 'longer than'), (('--device', 'tpu'), 'tpu')):
        done = serve(*words)
        if done.returncode != 1 or message not in done.stderr:
            sys.exit(f'{words}: status {done.returncode}, {done.stderr!r}: expected {message!r}')
