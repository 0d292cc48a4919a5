#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs a command under Vulkan's validation layer (core and synchronisation) and fails on any message of it, or if the layer was
not loaded with what it was asked for.
    validated.py [--ignore WORD]... [--expect WORD] [--scale NUMBER] [--gpu] COMMAND [ARGUMENT]...
--expect is the opposite: a message must have the word. --scale multiplies ATTUNE_TEST_SCALE. --gpu adds the checks that the layer
puts into shaders, in place of synchronisation. Exit status 77 (skipped) where the layer is not installed, cannot do it here, or
the command finds no device (status 3, of the program attune)."""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading

LAYER = 'VK_LAYER_KHRONOS_validation'
# Old layers know the list, new ones the names.
SETTINGS = '''khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.report_flags = error,warn,perf,info
khronos_validation.log_filename = {log}
khronos_validation.enables = VK_VALIDATION_FEATURE_ENABLE_{feature}_EXT
khronos_validation.{name} = true
'''
STATUS = re.compile('createinstance-status-message|Khronos Validation Layer Active', re.IGNORECASE)


def installed():
    homes = os.environ.get('VK_LAYER_PATH', '/usr/share/vulkan/explicit_layer.d:/etc/vulkan/explicit_layer.d:'
                           '/usr/local/share/vulkan/explicit_layer.d').split(':')
    return any(LAYER in path.read_text() for home in homes for path in pathlib.Path(home).glob('*.json'))


def blocks_of(text):
    """One for each message, whose further lines follow its first."""
    found = []
    for line in text.splitlines():
        if re.search(r'Validation (Error|Warning|Performance Warning|Information)', line):
            found.append(line)
        elif found:
            found[-1] += '\n' + line
        elif line.strip():
            found = [line]
    return found


parser = argparse.ArgumentParser()
parser.add_argument('--ignore', action='append', default=[])
parser.add_argument('--expect')
parser.add_argument('--scale', type=float, default=1)
parser.add_argument('--gpu', action='store_true')
parser.add_argument('command', nargs=argparse.REMAINDER)
options = parser.parse_args()
command = options.command[1:] if options.command[:1] == ['--'] else options.command
feature, name = ('GPU_ASSISTED', 'gpuav_enable') if options.gpu else ('SYNCHRONIZATION_VALIDATION', 'validate_sync')
if not installed():
    print(f'{LAYER} is not installed')
    sys.exit(77)
with tempfile.TemporaryDirectory() as home:
    # A pipe: each process of the command opens the log anew, and would empty a file of what others wrote.
    log = pathlib.Path(home) / 'messages'
    os.mkfifo(log)
    end = os.open(log, os.O_RDWR)
    messages = []

    def collect():
        while data := os.read(end, 65536):
            messages.append(data)
            if data.endswith(b'\0'):
                return

    reader = threading.Thread(target=collect)
    reader.start()
    (pathlib.Path(home) / 'vk_layer_settings.txt').write_text(SETTINGS.format(log=log, feature=feature, name=name))
    scale = options.scale * float(os.environ.get('ATTUNE_TEST_SCALE', 1))
    environment = dict(os.environ, VK_INSTANCE_LAYERS=LAYER, VK_LAYER_SETTINGS_PATH=home, VK_LOADER_DEBUG='layer',
                       ATTUNE_TEST_SCALE=str(scale))
    run = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, errors='replace')
    os.write(end, b'\0')
    reader.join()
    os.close(end)
    # The loader says what it inserts, and Criterion its results, on the same stream.
    sys.stderr.write(''.join(line + '\n' for line in run.stderr.splitlines()
                             if line and not line.startswith(('LAYER', 'INFO', 'DEBUG', 'WARNING', 'ERROR', '[Vulkan Loader]'))))
    text = b''.join(messages).rstrip(b'\0').decode(errors='replace')
if run.returncode == 3:
    sys.exit(77)
blocks = blocks_of(text)
status = [block for block in blocks if STATUS.search(block)]
# Information is of the layer's own doings, and so is what it says of its features for shaders.
if options.gpu:
    options.ignore += ['VALIDATION-SETTINGS', 'WARNING-GPU-Assisted-Validation']
blocks = [block for block in blocks if not STATUS.search(block) and 'Validation Information' not in block and
          not any(word in block for word in options.ignore)]
if not any(feature in block for block in status):
    sys.exit(f'{LAYER} was not loaded with {feature}: it says\n' + '\n'.join(status[:1]))
for block in blocks[:20]:
    print(block)
if options.expect:
    sys.exit(None if any(options.expect in block for block in blocks) else f'no message has {options.expect}')
if blocks:
    sys.exit(f'{len(blocks)} messages of the validation layer')
print(f'no message of the validation layer in {len(status)} instances')
sys.exit(run.returncode)
