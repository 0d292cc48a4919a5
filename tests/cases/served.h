/* SPDX-License-Identifier: MIT */
/* A case of a call over a cache with its numbers drawn, and the cache that holds them on a device. */
#ifndef ATTUNE_TESTS_CASES_SERVED_H
#define ATTUNE_TESTS_CASES_SERVED_H

#include <attune/attune.h>

#include "tests/oracle/reference.h"

enum {
    LIST = 1, /* the block table is one list, with pages_start */
    SINKS = 2,
    TREE = 4,         /* every row sees some of its sequence's drafts */
    UNIFORM = 8,      /* q has the rows of each sequence in a dimension of its own */
    FIRST = 16,       /* the first keys of sequences are gone */
    COUNT = 32,       /* the last sequence is not of this call */
    VIEW = 64,        /* v is the first columns of k */
    HOLES = 128,      /* some entries of the block table are unmapped */
    SHARED = 256,     /* sequences have the first's first pages */
    BESIDE = 512,     /* k and v are in one buffer, page by page */
    TOKENS = 1024,    /* [pages, page, heads, head_dim] */
    SPLIT = 2048,     /* parts of 256 keys */
    PREFIX = 4096,    /* the call says which keys are shared */
    INFINITE = 8192,  /* of e5m2: an element of the first V and of the last K of each head */
    NAN_BITS = 16384, /* an element of each sequence's first q is NaN by its lowest bit alone */
    NAN_V = 32768,    /* an element of the first V of each head is NaN */
    GATHER = 65536,   /* the plan has room for the rows of all sequences in a tile */
};

typedef struct serving_case {
    const char *name;
    int64_t heads, kv_heads, d, dv, page;
    const char *mask, *score;
    unsigned flags;
    const int64_t (*lengths)[2]; /* rows and keys; 0 rows and 0 keys at the end */
    const char *options;
    attune_dtype kv_dtype, v_dtype; /* 0 = that of q, of k */
    int scales;                     /* of k and v: 0 none, 1 of the tensor, 2 of heads, 3 of keys and heads */
} serving_case;

#define SEQUENCES_MAX 24

/* A case with its numbers drawn. */
typedef struct served {
    const serving_case *c;
    attune_dtype dtype, k_dtype, v_dtype;
    int64_t sequences, live, tokens, most_rows, most_keys;
    int64_t q_len[SEQUENCES_MAX], kv_len[SEQUENCES_MAX], first[SEQUENCES_MAX], row0[SEQUENCES_MAX];
    int64_t entry0[SEQUENCES_MAX + 1]; /* of the block table, as one list */
    /* The cache of each sequence, [kv_heads][keys]: rows as bytes, and factors; k and v are their values. */
    unsigned char *k_bytes[SEQUENCES_MAX], *v_bytes[SEQUENCES_MAX];
    float *k_scale[SEQUENCES_MAX], *v_scale[SEQUENCES_MAX];
    array q, k[SEQUENCES_MAX], v[SEQUENCES_MAX], sinks, slope, depth, tree;
    bool *hole; /* of each entry */
    int64_t words;
} served;

void served_draw(const serving_case *c, attune_dtype dtype, uint64_t seed, served *s);
void served_free(served *s);

/* Whether a sequence is of this call and has rows. */
bool served_live(const served *s, int64_t b);

/* Entries of the block table that a sequence has. */
int64_t served_pages(const served *s, int64_t b);

/* The pool of K and V, with NaN where there is no key, in pages that the seed shuffles. */
typedef struct served_pool {
    attune_tensor k, v, k_scale, v_scale, pages, pages_start;
    int64_t *place; /* the page of each entry */
} served_pool;

served_pool served_place(attune_device *device, const served *s, uint64_t seed);
void served_pool_free(served_pool *p);

attune_buffer *served_upload(attune_device *device, const void *data, uint64_t bytes);
attune_tensor served_integers(attune_device *device, const int32_t *data, uint32_t rank, int64_t size0, int64_t size1);

#endif
