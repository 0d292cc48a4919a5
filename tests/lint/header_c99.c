/* SPDX-License-Identifier: MIT */
/* The public header alone, as C99: it must compile, pedantically, with nothing before it. And its version is the
 * project's, PROJECT_VERSION. */
#include <attune/attune.h>
#include <attune/distributed.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
    attune_forward_args args;
    char version[64];
    args.struct_size = sizeof args;
    sprintf(version, "%d.%d.%d", ATTUNE_VERSION_MAJOR, ATTUNE_VERSION_MINOR, ATTUNE_VERSION_PATCH);
    return args.struct_size == sizeof args && ATTUNE_OK == 0 && strcmp(version, PROJECT_VERSION) == 0 &&
                   attune_version() ==
                       ATTUNE_VERSION_MAJOR * 1000000u + ATTUNE_VERSION_MINOR * 1000u + ATTUNE_VERSION_PATCH
               ? 0
               : 1;
}
