#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs a command under Vulkan's validation layer and fails on any message of it, or if the layer was not loaded.
    validated.py [--ignore WORD]... COMMAND [ARGUMENT]...
Exit status 77 (skipped) where the layer is not installed."""
import os
import pathlib
import subprocess
import sys
import tempfile

LAYER = 'VK_LAYER_KHRONOS_validation'
SETTINGS = '''khronos_validation.debug_action = VK_DBG_LAYER_ACTION_LOG_MSG
khronos_validation.report_flags = error,warn,perf
khronos_validation.log_filename = {log}
khronos_validation.validate_sync = true
'''


def installed():
    homes = os.environ.get('VK_LAYER_PATH', '/usr/share/vulkan/explicit_layer.d:/etc/vulkan/explicit_layer.d:'
                           '/usr/local/share/vulkan/explicit_layer.d').split(':')
    return any(LAYER in path.read_text() for home in homes for path in pathlib.Path(home).glob('*.json'))


command = sys.argv[1:]
ignored = []
while command and command[0].startswith('--'):
    if command[0] == '--ignore':
        ignored.append(command.pop(1))
    command.pop(0)
if not installed():
    print(f'{LAYER} is not installed')
    sys.exit(77)
with tempfile.TemporaryDirectory() as home:
    log = pathlib.Path(home) / 'messages'
    (pathlib.Path(home) / 'vk_layer_settings.txt').write_text(SETTINGS.format(log=log))
    environment = dict(os.environ, VK_INSTANCE_LAYERS=LAYER, VK_LAYER_SETTINGS_PATH=home, VK_LOADER_DEBUG='layer')
    run = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, errors='replace')
    # The loader says what it inserts, and Criterion its results, on the same stream.
    loaded = [line for line in run.stderr.splitlines() if LAYER in line]
    sys.stderr.write(''.join(line + '\n' for line in run.stderr.splitlines()
                             if line and not line.startswith(('LAYER', 'INFO', 'DEBUG', 'WARNING', 'ERROR'))))
    messages = log.read_text(errors='replace') if log.exists() else ''
    blocks = [block for block in messages.split('\nValidation ') if block.strip()]
    blocks = [block for block in blocks if not any(word in block for word in ignored)]
if not loaded:
    sys.exit(f'{LAYER} was not loaded')
for block in blocks[:20]:
    print(block)
if blocks:
    sys.exit(f'{len(blocks)} messages of the validation layer')
print('no message of the validation layer')
sys.exit(run.returncode)
