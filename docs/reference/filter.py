#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Doxygen's input filter: prints a public header with its comments as Doxygen marks them. The headers keep plain comments, which
is how engineers read them.
    the first comment                the file's, and attune.h's is the main page
    /* ------ name */                a group of the reference
    /* ... */ above declarations     that of each up to the next empty line
    /* ... */ above or behind a member   that of each name that the member declares; without one, its struct speaks for it"""
import pathlib
import re
import sys

COMMENT = r'/\*(?:[^*]|\*(?!/))*\*/'
RULE = re.compile(r'/\* -{5,} (.*?) \*/')
BODY = re.compile(r'typedef (struct|enum) (\w+) \{\n(.*?)^\} \w+;', re.M | re.S)
PLAIN = {'struct_size': '/* sizeof the struct, as its caller knows it. */'}


def words(comment):
    """A comment's text, without what Doxygen or Markdown would take for marks. Indented lines are code already."""
    lines = []
    for line in comment[2:-2].split('\n'):
        line, starred = re.subn(r'^\s*\* ?', '', line.rstrip())
        if not (starred and line.startswith('    ')):
            line = re.sub(r'[\\@<>#%$&]', r'\\\g<0>', line.strip()).replace('*', '&lowast;')
        lines.append(line)
    return '\n'.join(lines).strip('\n')


def marked(*comments):
    return '/**\n' + '\n\n'.join(words(comment) for comment in comments) + '\n*/'


def normal(found):
    """A struct or an enum with each member on its own and its comment above it."""
    kind, name, body = found.groups()
    members, above, end = [], [], 0
    separator = ';' if kind == 'struct' else ','
    for token in re.finditer(rf'(?P<comment>{COMMENT})|(?P<member>[^{separator}/]*\w[^{separator}/]*){separator}?', body, re.S):
        if token['comment'] and members and '\n' not in body[end:token.start()]:
            members[-1][1].append(token['comment'])
        elif token['comment']:
            above.append(token['comment'])
        else:
            members.append((' '.join(token['member'].split()), above))
            above, end = [], token.end()
    lines = []
    for member, comments in members:
        names = [member]
        if kind == 'struct' and '(' not in member:
            type_, first = re.fullmatch(r'(.*?)(\**\w+(?:\[\w+\])*(?:, .*)?)', member).groups()
            names = [type_ + name for name in first.split(', ')]
        for each in names:
            plain = PLAIN.get(each.split()[-1], '/* As the description above says. */')
            lines.append(marked(*(comments or [plain])) + f'\n{each}{separator}\n')
    return f'typedef {kind} {name} {{\n' + ''.join(lines) + f'}} {name};'


def shared(run):
    """Declarations that follow one another without an empty line have the comment above the first."""
    found = re.match(rf'({COMMENT})\n(?=.)', run)
    if RULE.match(run):
        return run
    if not found:
        return re.sub(rf'^(#define .*?) *({COMMENT})$', lambda line: f'{marked(line[2])}\n{line[1]}', run, flags=re.M)
    marks = []
    for each in re.split(r'^(?=ATTUNE_API |#define |typedef )', run[found.end():], flags=re.M):
        behind = re.fullmatch(rf'(#define .*?) *({COMMENT})\s*', each)
        if behind:
            marks.append(marked(found[1], behind[2]) + f'\n{behind[1]}\n')
        elif each.strip():
            marks.append(marked(found[1]) + f'\n{each}')
    return ''.join(marks)


path = pathlib.Path(sys.argv[1])
text = path.read_text()
title = re.match(rf'/\* SPDX.*\n({COMMENT})', text)
page = '@mainpage attune' if path.name == 'attune.h' else f'@file {path.name}'
start = ('/** @file */\n' if path.name == 'attune.h' else '') + f'/** {page}\n' + words(title[1]) + '\n*/\n'
text = BODY.sub(normal, text[title.end():])
text = '\n\n'.join(''.join(shared(run) for run in re.split(r'^(?=/\*(?!\*))', part, flags=re.M)) for part in text.split('\n\n'))
groups = 0


def group(found):
    global groups
    groups += 1
    return ('/** @} */\n' if groups > 1 else '') + f'/** @defgroup {path.stem}_{groups} {found[1].capitalize()}\n@{{ */'


text = RULE.sub(group, text)
if groups:
    end = text.rindex('#ifdef __cplusplus')
    text = text[:end] + '/** @} */\n' + text[end:]
print(start + text)
