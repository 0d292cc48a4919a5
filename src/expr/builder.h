/* SPDX-License-Identifier: MIT */
/* Construction of expressions: nodes are simplified and hash-consed when they are created. Finishing yields an
 * immutable attune_expr, whose order of nodes depends on the content only. */
#ifndef ATTUNE_EXPR_BUILDER_H
#define ATTUNE_EXPR_BUILDER_H

#include "expr/expr.h"

/* The limit on nodes during construction; a finished expression has at most ATTUNE_EXPR_MAX_NODES. */
#define ATTUNE__BUILDER_NODES (4 * ATTUNE_EXPR_MAX_NODES)
#define ATTUNE__NONE          UINT32_MAX

/* The limit on arguments of a call, which min and max reach. Printing respects it too. */
#define ATTUNE__MAX_ARGUMENTS 16

typedef struct attune__builder {
    const attune_allocator *allocator;
    attune_expr_kind kind; /* a mask's constants are f32 */
    attune__node *nodes;
    attune__hash *hashes; /* hashes of content: symbols by name, operands by their hashes */
    uint32_t *table;      /* open addressing: node + 1, 0 = free */
    uint32_t count;
    bool overflow;   /* out of nodes: every later node is node 0, and finishing fails */
    bool substitute; /* while importing, variables are replaced by var[] where it is not ATTUNE__NONE */
    uint32_t var[ATTUNE__VAR_ROW + 1];
    uint32_t symbol_count;
    attune__symbol symbols[ATTUNE_EXPR_MAX_SYMBOLS];
} attune__builder;

attune_status attune__builder_init(attune__builder *builder, const attune_allocator *allocator, attune_expr_kind kind);
void attune__builder_free(attune__builder *builder);

/* Finds or adds a symbol; ATTUNE__NONE if there are ATTUNE_EXPR_MAX_SYMBOLS others. */
uint32_t attune__builder_symbol(attune__builder *builder, const attune__symbol *symbol);

uint32_t attune__make_bool(attune__builder *builder, bool value);
uint32_t attune__make_int(attune__builder *builder, int32_t value);
uint32_t attune__make_float(attune__builder *builder, double value);
uint32_t attune__make_var(attune__builder *builder, attune__var var);
/* A parameter, or a capture with as many indices as its rank. */
uint32_t attune__make_symbol(attune__builder *builder, uint32_t symbol, const uint32_t *arg);
/* Creates any operation; operands must have the operation's types. */
uint32_t attune__make(attune__builder *builder, attune__op op, uint32_t a, uint32_t b, uint32_t c);
/* The same for one operand, and for two. */
uint32_t attune__make1(attune__builder *builder, attune__op op, uint32_t a);
uint32_t attune__make2(attune__builder *builder, attune__op op, uint32_t a, uint32_t b);

static inline attune__type attune__type_of(const attune__builder *builder, uint32_t node)
{
    return (attune__type)builder->nodes[node].type;
}

/* Creates the expression from the nodes that the root needs. Fails with the status `limit` if a limit is exceeded. */
attune_status attune__builder_finish(attune__builder *builder, uint32_t root, attune_status limit, attune_expr **expr);

/* Likewise for several roots that share one array of nodes. `roots` receives their numbers. */
attune_status attune__builder_finish_all(attune__builder *builder, uint32_t *roots, uint32_t root_count,
                                         attune_status limit, attune_expr **expr);

/* Copies an expression's nodes into the builder; number[i], of ATTUNE_EXPR_MAX_NODES, receives the number of node i. */
attune_status attune__builder_import(attune__builder *builder, const attune_expr *expr, uint32_t *number);

#endif
