/* SPDX-License-Identifier: MIT */
/* Any mask expression over any small lengths and blocks: every block and every pair against every element. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "support/mask_oracle.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define HEAD 8 /* bytes of sizes before the expression */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[512];
    static oracle_world world;
    if (size < HEAD || size - HEAD >= sizeof text)
        return 0;
    memcpy(text, data + HEAD, size - HEAD);
    text[size - HEAD] = '\0';

    oracle_random random = {data[0]};
    oracle_world_make(&world, &random);
    attune_mask_desc desc =
        oracle_desc(1 + data[1] % 100, 1 + data[2] % 100, 16u * (1 + data[3] % 8u), 16u * (1 + data[4] % 8u));
    desc.batch = 1 + data[5] % 3;
    desc.kv_heads = 1 + data[6] % 2;
    desc.heads = desc.kv_heads * (1 + data[6] / 2 % 2);

    /* As the API does: a mask has no rows of ragged batches. */
    attune_expr *parsed = oracle_parse(text), *dense = NULL;
    if (parsed)
        (void)attune__expr_dense(&attune__default_allocator, parsed, &dense);
    attune__expr_release(parsed);
    oracle_bound bound;
    if (oracle_bind(&bound, dense, world.captures, 7, world.parameters, 2) == ATTUNE_OK) {
        attune_mask *mask = NULL;
        char message[256];
        if (attune__mask_build(&attune__default_allocator, &desc, bound.expr, bound.arrays, bound.values, &mask) !=
            ATTUNE_OK)
            abort();
        const oracle_expression expected = {&bound, desc};
        if (!oracle_check(mask, oracle_expression_element, &expected, data[7] % 2, message))
            abort();
        attune__mask_free(mask);
    }
    attune__expr_release(bound.expr);
    return 0;
}
