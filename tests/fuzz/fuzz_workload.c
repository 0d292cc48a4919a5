/* SPDX-License-Identifier: MIT */
/* Any bytes as a file of workloads: parsed or refused with a reason, and what is parsed can be shrunk and, if it is
 * small, made. */
#include "bench/workloads/workload.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static attune_instance *instance;
    workload *list;
    uint32_t count;
    failure why = {{0}};
    if (!instance && attune_instance_create(NULL, &instance) != ATTUNE_OK)
        abort();
    if (!workload_parse((const char *)data, size, "fuzz", false, &list, &count, &why)) {
        if (!why.message[0] || list || count)
            abort();
        return 0;
    }
    for (uint32_t i = 0; i < count && i < 4; ++i) {
        workload w = workload_scaled(&list[i], 1e-6);
        double elements = (double)w.batch * (double)w.heads * (double)(w.q_len + w.kv_len) *
                          ((double)w.head_dim + (double)w.head_dim_v);
        double given = 0;
        for (uint32_t c = 0; c < w.capture_count; ++c)
            if (w.captures[c].generator[0] && w.captures[c].values.rank) {
                double own = (double)array_count(&w.captures[c].values);
                for (uint32_t d = 0; d < w.captures[c].values.rank; ++d)
                    if (w.captures[c].extent[d] != WORKLOAD_NUMBER)
                        own *= (double)(w.q_len + w.kv_len) + (double)(w.batch + w.heads);
                given += own;
            }
        attention a;
        if (elements > 1e6 || given > 1e6)
            continue;
        if (workload_instantiate(instance, &w, 1, &a, &why))
            workload_release(&a);
    }
    workload_list_free(list, count);
    return 0;
}
