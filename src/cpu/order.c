/* SPDX-License-Identifier: MIT */
#include "cpu/order.h"

#include <string.h>

#define MOST  ATTUNE__ORDER_MOST
#define WORDS ATTUNE__ORDER_WORDS

/* The bits of a row, or a column, as a number. */
typedef struct key {
    uint64_t high, low;
    uint64_t index;
} key;

/* Without a branch: it would be mispredicted. */
static bool before(const key *a, const key *b)
{
    return (a->high > b->high) | ((a->high == b->high) & (a->low > b->low));
}

/* The largest first; equal ones remain in order. The first run is found, since most tiles begin sorted. */
static void sort(key *keys, size_t count)
{
    key other[MOST];
    key *from = keys, *to = other;
    size_t sorted = 1;
    while (sorted < count && !before(&keys[sorted], &keys[sorted - 1]))
        sorted++;
    if (sorted >= count)
        return;
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t first = 0; first < count; first += 2 * width) {
            const size_t middle = first + width < count ? first + width : count;
            const size_t end = middle + width < count ? middle + width : count;
            size_t a = first, b = middle;
            size_t i = first;
            while (a < middle && b < end) {
                const bool second = before(&from[b], &from[a]);
                to[i++] = from[second ? b : a];
                b += second;
                a += !second;
            }
            memcpy(to + i, from + (a < middle ? a : b), (end - i) * sizeof *to);
        }
        key *const swapped = from;
        from = to;
        to = swapped;
    }
    if (from != keys)
        memcpy(keys, from, count * sizeof *keys);
}

static uint64_t reversed(uint64_t x)
{
    x = (x >> 1 & UINT64_C(0x5555555555555555)) | (x & UINT64_C(0x5555555555555555)) << 1;
    x = (x >> 2 & UINT64_C(0x3333333333333333)) | (x & UINT64_C(0x3333333333333333)) << 2;
    x = (x >> 4 & UINT64_C(0x0f0f0f0f0f0f0f0f)) | (x & UINT64_C(0x0f0f0f0f0f0f0f0f)) << 4;
    return __builtin_bswap64(x);
}

/* Rows of `bits` in the order of their numbers, in `to` and `at`. The last column is the highest digit, or the first.
 */
static void sort_rows(uint16_t to[MOST][WORDS], uint16_t *at, const uint16_t bits[MOST][WORDS], size_t rows, bool first)
{
    key keys[MOST];
    for (size_t r = 0; r < rows; r++) {
        keys[r] = (key){0, 0, r};
        for (size_t w = 0; w < WORDS / 2; w++) {
            keys[r].low |= (uint64_t)bits[r][w] << 16 * w;
            keys[r].high |= (uint64_t)bits[r][w + WORDS / 2] << 16 * w;
        }
        if (first)
            keys[r] = (key){reversed(keys[r].low), reversed(keys[r].high), r};
    }
    sort(keys, rows);
    for (size_t r = 0; r < rows; r++) {
        at[r] = (uint16_t)keys[r].index;
        memcpy(to[r], bits[keys[r].index], sizeof to[r]);
    }
    memset(to + rows, 0, (MOST - rows) * sizeof to[0]);
}

/* 8 x 8 bits, a row a byte (Warren, Hacker's Delight, 7-3). */
static uint64_t transposed_bytes(uint64_t x)
{
    uint64_t t = (x ^ x >> 7) & UINT64_C(0x00aa00aa00aa00aa);
    x ^= t ^ t << 7;
    t = (x ^ x >> 14) & UINT64_C(0x0000cccc0000cccc);
    x ^= t ^ t << 14;
    t = (x ^ x >> 28) & UINT64_C(0x00000000f0f0f0f0);
    return x ^ t ^ t << 28;
}

/* Numbers are little-endian: byte i of a row has its columns 8 i to 8 i + 7. */
static void transpose(uint16_t to[MOST][WORDS], const uint16_t from[MOST][WORDS])
{
    uint8_t *bytes_to = (uint8_t *)to;
    const uint8_t *bytes_from = (const uint8_t *)from;
    const size_t bytes = sizeof to[0];
    for (size_t r = 0; r < MOST; r += 8)
        for (size_t c = 0; c < bytes; c++) {
            uint64_t x = 0;
            for (size_t i = 0; i < 8; i++)
                x |= (uint64_t)bytes_from[(r + i) * bytes + c] << 8 * i;
            x = transposed_bytes(x);
            for (size_t i = 0; i < 8; i++)
                bytes_to[(8 * c + i) * bytes + r / 8] = (uint8_t)(x >> 8 * i);
        }
}

void attune__order_find(const uint16_t *bits, size_t ldb, size_t rows, size_t columns, bool first, attune__order *order)
{
    uint16_t a[MOST][WORDS], b[MOST][WORDS];
    const size_t words = (columns + 15) / 16;
    memset(a, 0, sizeof a);
    memset(b, 0, sizeof b);
    for (size_t r = 0; r < rows; r++)
        memcpy(a[r], bits + r * ldb, words * sizeof *bits);
    sort_rows(order->bits, order->row, (const uint16_t(*)[WORDS])a, rows, first);
    transpose(b, (const uint16_t(*)[WORDS])order->bits);
    sort_rows(a, order->column, (const uint16_t(*)[WORDS])b, columns, first);
    transpose(order->bits, (const uint16_t(*)[WORDS])a);
}

size_t attune__order_cells(const uint16_t *bits, size_t ldb, size_t rows, size_t words)
{
    size_t pairs = 0;
    for (size_t r = 0; r < rows; r += ATTUNE__CELL_ROWS) {
        const size_t n = rows - r < ATTUNE__CELL_ROWS ? rows - r : ATTUNE__CELL_ROWS;
        for (size_t w = 0; w < words; w++) {
            uint16_t any = 0;
            for (size_t i = 0; i < n; i++)
                any |= bits[(r + i) * ldb + w];
            pairs += any ? 16 * n : 0;
        }
    }
    return pairs;
}

static uint64_t hash_of(const uint16_t bits[MOST][WORDS], size_t rows)
{
    uint64_t hash = 0;
    for (size_t r = 0; r < rows; r++) {
        uint64_t half[2];
        memcpy(half, bits[r], sizeof half);
        hash = (hash ^ half[0] ^ half[1] << 1) * UINT64_C(0x9e3779b97f4a7c15);
        hash ^= hash >> 32;
    }
    return hash;
}

void attune__order_begin(attune__known_orders *known)
{
    known->next = 0;
    for (size_t i = 0; i < ATTUNE__KNOWN_ORDERS; i++)
        known->order[i].rows = 0;
}

const attune__known_order *attune__order_known(attune__known_orders *known, const uint16_t *bits, size_t ldb,
                                               size_t rows, size_t columns, size_t enough)
{
    uint16_t tile[MOST][WORDS];
    const size_t words = (columns + 15) / 16;
    memset(tile, 0, sizeof tile);
    for (size_t r = 0; r < rows; r++)
        memcpy(tile[r], bits + r * ldb, words * sizeof *bits);
    const uint64_t hash = hash_of((const uint16_t(*)[WORDS])tile, rows);
    for (size_t i = 0; i < ATTUNE__KNOWN_ORDERS; i++) {
        const attune__known_order *k = &known->order[i];
        if (k->rows == rows && k->hash == hash && k->columns == columns && !memcmp(k->bits, tile, sizeof tile))
            return k;
    }
    attune__known_order *to = &known->order[known->next];
    known->next = (known->next + 1) % ATTUNE__KNOWN_ORDERS;
    to->hash = hash;
    to->rows = rows;
    to->columns = columns;
    memcpy(to->bits, tile, sizeof tile);
    attune__order_find(tile[0], WORDS, rows, columns, false, &to->order);
    to->cells = attune__order_cells(to->order.bits[0], WORDS, rows, words);
    if (to->cells > enough) {
        attune__order other;
        attune__order_find(tile[0], WORDS, rows, columns, true, &other);
        const size_t cells = attune__order_cells(other.bits[0], WORDS, rows, words);
        if (cells < to->cells) {
            to->order = other;
            to->cells = cells;
        }
    }
    return to;
}
