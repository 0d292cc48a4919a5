/* SPDX-License-Identifier: MIT */
/* Calls over a cache: problems of their own, with an oracle of their own. */
#ifndef TESTS_RANDOM_SERVING_H
#define TESTS_RANDOM_SERVING_H

#include "random/place.h"

#define SEQUENCES 80
#define STEPS     3

typedef enum scale_kind { SCALE_NONE, SCALE_TENSOR, SCALE_HEADS, SCALE_KEYS } scale_kind;

/* Where a cache has its rows: in elements, or blocks. */
typedef struct cache_layout {
    bool nhd;    /* [pages, page, heads, dim], else [pages, heads, page, dim] */
    bool beside; /* K and V in one buffer, page by page */
    uint8_t pad_row, pad_plane, pad_page, offset;
} cache_layout;

/* New rows of a step, which attune_append writes before the forward call. */
typedef struct appending {
    bool used;
    bool slots, positions; /* own ones, not those of the batch */
    bool queries;
    bool norm, q_norm, own_weights; /* own: weights of the problem's dtype */
    uint32_t norm_columns;
    bool rotate, interleaved;
    uint32_t rotary_first, rotary_columns;
    int64_t rotary_positions; /* of the tables */
    layout k, v, q, q_out, slot, position, cosine;
} appending;

/* One call: lengths as the device reads them, right or wrong. */
typedef struct step {
    uint64_t seed;
    data_kind data;
    int sequences;
    bool has_count, has_first, has_shared, has_tree;
    int count;
    int64_t rows[SEQUENCES], keys[SEQUENCES], first[SEQUENCES], shared[SEQUENCES];
    int64_t nudge[SEQUENCES + 1];      /* added to q_start */
    int64_t page_nudge[SEQUENCES + 1]; /* added to pages_start */
    int64_t before, after;             /* rows of q that no sequence has */
    int64_t table_more;                /* entries past the longest sequence; below 0: the table is too short */
    int64_t pool_more;                 /* pages that no table has */
    int holes;                         /* entries without a page, in percent */
    int64_t words;                     /* of the tree */
    bool want_lse, want_row_max;
    int shrink_captures;
    cache_layout cache[2]; /* of both placements */
    layout q, o, lse, row_max, ints, captures[2 * SYMBOLS];
    uint32_t workspace_offset; /* in 256 bytes */
    appending append;
} step;

typedef struct serving {
    uint64_t seed, index;
    attune_dtype dtype, k_dtype, v_dtype, o_dtype;
    loop_order threads;
    uint32_t head_dim, head_dim_v;
    int64_t heads, kv_heads, batch, q_len, kv_len, tokens, page; /* page 0 = contiguous */
    double scale;
    bool latent; /* V is a part of K */
    bool list;   /* of pages, with pages_start */
    bool packed; /* with q_start */
    bool tree, sinks, lse, row_max;
    scale_kind k_scale, v_scale;
    bool has_mask, has_score;
    struct tree mask, score;
    uint32_t split_keys, together; /* together: problem.shared_sequences */
    bool has_options;
    attune_pass_options options;
    bool many;   /* steps have more sequences than a few */
    bool alone;  /* each sequence alone has the same bits */
    bool layers; /* a second plan with the schedule of the first */
    int step_count;
    step steps[STEPS];
} serving;

/* The contents of a place in the cache: anything, a key, or one whose NaN no row sees. The last is the same in both
 * placements, since a kernel may compute rows beside NaN in another order. */
typedef enum key_use { KEY_NONE, KEY_READ, KEY_HIDDEN } key_use;

/* A key's row in each cache, and what it means. */
typedef struct rows_of_cache {
    attune_dtype dtype;
    int64_t columns, units; /* units: elements or blocks of a row */
    size_t bytes;           /* of a row */
    scale_kind kind;
    unsigned char *at; /* [entries, kv_heads, page, bytes] */
    double *scale;     /* [1], [kv_heads] or [entries, kv_heads, page] */
} rows_of_cache;

/* A step's data, placed nowhere yet. Entries are those of all block tables, one after another. */
typedef struct step_data {
    int64_t page, entries, columns; /* columns: of a dense table */
    int64_t entry_start[SEQUENCES + 1];
    int64_t rows; /* of q: tokens, or sequences * q_len */
    int32_t q_start[SEQUENCES + 1], kv_len[SEQUENCES], kv_first[SEQUENCES], shared[SEQUENCES],
        pages_start[SEQUENCES + 1];
    bool *hole;    /* [entries] */
    bool *mapped;  /* [entries]: some sequence looks at it */
    uint8_t *used; /* [entries, kv_heads, page]: a key_use */
    rows_of_cache k, v;
    grid q; /* [rows, heads, head_dim], or [sequences, heads, q_len, head_dim] */
    double sinks[64];
    uint32_t *tree; /* [rows, words] */
    binding mask[SYMBOLS], score[SYMBOLS];
    grid new_k, new_v;          /* what is appended: as q, of kv_heads */
    bool *new_rows;             /* [rows]: those that are appended */
    int64_t *entry_of, *key_of; /* [rows]: and where */
    expected o, lse, row_max;
    bool *contested; /* [rows]: several sequences have it */
} step_data;

/* A sequence's numbers as the device reads them, by the header. */
typedef struct sequence {
    bool written, masked;
    int64_t row, rows, keys, first, entry;
} sequence;
/* The position of a row in the tables of rotations: its own, or that of its key. */
int64_t position_of(const step *c, int64_t row, int64_t key);
sequence sequence_of(const serving *s, const step *c, const step_data *d, int b);
/* A row's index among those of q, and that of a row and head among those of lse. */
int64_t row_index(const serving *s, const step_data *d, const sequence *of, int b, int64_t i);
int64_t lse_index(const serving *s, const step_data *d, int64_t row, int64_t h);
/* The sequence whose key it is: one before, of keys in common. */
int owner_of(const step *c, const step_data *d, int b, int64_t kv);

void serving_draw(uint64_t seed, uint64_t index, const draw_profile *profile, serving *s);
void serving_print(const serving *s, FILE *out);
bool run_serving(runner *r, const serving *s, finding *f);
void shrink_serving(runner *r, serving *s, finding *f, int tries, double seconds);

bool step_create(const serving *s, const step *c, step_data *d);
void step_destroy(step_data *d);
/* Marks what some row sees, for keys that hide NaN. */
bool pair_allowed(const serving *s, const step *c, const step_data *d, const sequence *of, int b, int64_t i, int64_t h,
                  int64_t kv);
void step_expect(const serving *s, const step *c, kernel_kind kind, step_data *d);

/* Rows of a cache: `count` elements from bytes, and to bytes. */
double code_get(attune_dtype dtype, const unsigned char *row, int64_t column);
void code_set(attune_dtype dtype, unsigned char *at, double value);
/* A row that its words draw. */
void row_draw(const rows_of_cache *of, uint64_t word, data_kind data, unsigned char *row);
void cache_values(const rows_of_cache *of, const unsigned char *row, double scale, double *values);
double scale_at(const rows_of_cache *of, int64_t kv_heads, int64_t page, int64_t entry, int64_t h, int64_t slot);
double normal_of(uint64_t word);

#endif
