// SPDX-License-Identifier: MIT
// The public header alone, as C++11.
#include <attune/attune.h>
#include <attune/distributed.h>

int main()
{
    attune_instance *instance = nullptr;
    if (attune_instance_create(nullptr, &instance) != ATTUNE_OK)
        return 1;
    attune_problem problem = {};
    problem.struct_size = sizeof problem;
    attune_instance_destroy(instance);
    return problem.head_dim;
}
