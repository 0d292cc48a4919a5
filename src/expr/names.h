/* SPDX-License-Identifier: MIT */
/* The names of the language: variables, functions and presets, and suggestions for unknown names. */
#ifndef ATTUNE_EXPR_NAMES_H
#define ATTUNE_EXPR_NAMES_H

#include "expr/expr.h"

#define ATTUNE__NAME_SIZE         64 /* with the NUL */
#define ATTUNE__PRESET_PARAMETERS 4

typedef struct attune__function {
    const char *name;
    const char *usage;
    attune__op op;
    uint32_t least, most; /* arguments */
    bool clamp;           /* expanded to min and max */
} attune__function;

const attune__function *attune__function_find(const char *name); /* NULL: none */
int attune__var_find(const char *name);                          /* -1: none */

bool attune__preset_exists(const char *name);
bool attune__preset_is(const attune_preset *preset, const char *name);
/* The names in a preset's signature; returns their number. */
uint32_t attune__preset_parameters(const attune_preset *preset,
                                   char names[ATTUNE__PRESET_PARAMETERS][ATTUNE__NAME_SIZE]);

/* INVALID_ARGUMENT if a declared symbol breaks the rules of attune_symbol. */
attune_status attune__symbols_check(const attune_symbol *symbols, uint32_t count);

/* Writes a suggestion for an unknown name, and the known names. */
void attune__names_suggest(const char *name, attune_expr_kind kind, const attune_symbol *symbols, uint32_t count,
                           char *hint, size_t size);

#endif
