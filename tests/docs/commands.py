#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Commands that the documents name exist: verbs and options of the program, and verbs of ./dev.
    commands.py SOURCE PROGRAM
docs/decisions says what was done in its day, and is not read."""
import pathlib
import re
import subprocess
import sys

source, program = pathlib.Path(sys.argv[1]).resolve(), sys.argv[2]
asked = {}


def help_of(*command):
    if command not in asked:
        done = subprocess.run(command, capture_output=True, text=True)
        asked[command] = done.stdout if done.returncode == 0 else ''
    return asked[command]


errors, count = [], 0
pages = [*source.glob('*.md'), *(page for page in source.glob('docs/**/*.md') if 'decisions' not in page.parts)]
for page in sorted(pages):
    text = page.read_text().replace('\\\n', '  ')
    # Code: fenced, a line that is indented, and between backticks.
    code = [(span.start(group), span[group])
            for span in re.finditer(r'^```(?:\n|sh.*\n|console\n)((?:.*\n)*?)```|^```(?:.*\n)*?```|^ {4}(.+)$|`([^`\n]+)`', text, re.M)
            for group in (1, 2, 3) if span[group]]
    for start, found in ((start, found) for start, piece in code
                         for found in re.finditer(r'(?:^ *|(?<=[/;$] )|(?<=&& )|(?<=/))(attune|\./dev) ([a-z]+)(.*)', piece, re.M)):
        name, verb, rest = found.groups()
        count += 1
        where = f'{page.relative_to(source)}:{text.count(chr(10), 0, start + found.start()) + 1}'
        if name == './dev':
            if not re.search(rf'^\./dev {verb}\b', help_of(source / 'dev', 'help'), re.M):
                errors.append(f'{where}: ./dev has no verb {verb}')
            continue
        usage = help_of(program, verb, '--help')
        if not usage:
            errors.append(f'{where}: attune has no command {verb}')
            continue
        for option in re.findall(r'(?<!\S)--[a-z][a-z-]*', re.sub(r"'[^']*'", "''", rest).split(' #')[0]):
            if option != '--help' and not re.search(rf'{option}\b(?!-)', usage):
                errors.append(f'{where}: attune {verb} has no option {option}')
if count < 50:
    errors.append(f'only {count} commands were found: the check does not see the documents')
print('\n'.join(errors) or f'{count} commands in {len(pages)} documents')
sys.exit(bool(errors))
