/* SPDX-License-Identifier: MIT */
/* The public header alone, as C99: it must compile, pedantically, with nothing before it. */
#include <attune/attune.h>

int main(void)
{
    attune_forward_args args;
    args.struct_size = sizeof args;
    return args.struct_size == sizeof args && ATTUNE_OK == 0 &&
                   attune_version() ==
                       ATTUNE_VERSION_MAJOR * 1000000u + ATTUNE_VERSION_MINOR * 1000u + ATTUNE_VERSION_PATCH
               ? 0
               : 1;
}
