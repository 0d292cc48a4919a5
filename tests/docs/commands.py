#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Commands that the documents name exist: verbs and options of the program, and verbs of ./dev.
    commands.py SOURCE PROGRAM
Of docs/*.md the commands that need neither a file nor a device are run, on lines of their own and not between backticks, and must
succeed; a block of text directly behind a block of sh, of one command, is what it prints. tests/docs/pages.py runs README.md and docs/guide.
docs/decisions says what was done in its day, and is not read."""
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile

source, program = pathlib.Path(sys.argv[1]).resolve(), str(pathlib.Path(sys.argv[2]).resolve())
asked = {}


def help_of(*command):
    if command not in asked:
        done = subprocess.run(command, capture_output=True, text=True)
        asked[command] = done.stdout if done.returncode == 0 else ''
    return asked[command]


def words_to_run(verb, rest):
    """The command's words, or None where it is not for here."""
    if verb not in ('explain', 'expr', 'mask'):
        return None
    words = shlex.split(rest, comments=True)
    outputs = [words[at + 1] for at, word in enumerate(words[:-1]) if word in ('--png', '--svg')]
    if any(word in ('...', '>', '|') or word == '--device' or re.search(r'\.npy$', word) for word in words):
        return None
    # A name in capitals stands for another word.
    if not words or any(re.fullmatch('[A-Z]{2,}', word) for word in words + outputs):
        return None
    return [verb, *words]


def run(words, printed, folder):
    """The error of a command that is run, or None. printed: what it must print; None = anything."""
    done = subprocess.run([program, *words], capture_output=True, text=True, cwd=folder)
    if done.returncode:
        return f'attune {shlex.join(words)} exits with {done.returncode}: {done.stderr.strip()}'
    if printed is not None and done.stdout.strip() != printed.strip():
        return f'attune {shlex.join(words)} prints something else:\n{done.stdout}'
    return None


errors, count, ran, compared = [], 0, 0, 0
scratch = tempfile.TemporaryDirectory()
pages = [*source.glob('*.md'), *(page for page in source.glob('docs/**/*.md') if 'decisions' not in page.parts)]
for page in sorted(pages):
    text = page.read_text().replace('\\\n', '  ')
    # Code: fenced, a line that is indented, and between backticks.
    code = [(span.start(group), span[group])
            for span in re.finditer(r'^```(?:\n|sh.*\n|console\n)((?:.*\n)*?)```|^```(?:.*\n)*?```|^ {4}(.+)$|`([^`\n]+)`', text, re.M)
            for group in (1, 2, 3) if span[group]]
    after = {span.start(1): span[2] for span in re.finditer(r'^```sh.*\n((?:.*\n)*?)```\n```text\n((?:.*\n)*?)```', text, re.M)}
    for start, piece, found in ((start, piece, found) for start, piece in code
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
        alone = text[text.rfind('\n', 0, start) + 1:start].strip() == ''
        words = words_to_run(verb, rest) if alone and page.parent == source / 'docs' else None
        if words:
            ran += 1
            compared += start in after
            wrong = run(words, after.get(start), scratch.name)
            if wrong:
                errors.append(f'{where}: {wrong}')
if count < 50 or ran < 8 or not compared:
    errors.append(f'only {count} commands were found, {ran} were run and {compared} compared: the check does not see the documents')
print('\n'.join(errors) or f'{count} commands in {len(pages)} documents; {ran} were run')
sys.exit(bool(errors))
