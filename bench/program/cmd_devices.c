/* SPDX-License-Identifier: MIT */
/* attune devices: lists the devices with their limits, and the reason for each backend without one. */
#include "bench/program/cli.h"

#include "bench/program/limits_text.h"
#include "bench/timing/json_text.h"

#include <inttypes.h>
#include <stdio.h>

static void print_text(const attune_device_info *info)
{
    if (!info->available) {
        (void)printf("%-10s unavailable: %s\n", info->id, info->reason);
        return;
    }
    (void)printf("%-10s %s%s%s\n", info->id, info->name, info->driver[0] ? ", " : "", info->driver);
    if (info->uuid[0])
        (void)printf("%-10s   uuid %s\n", "", info->uuid);
    limits_print(&info->limits, "             ");
}

static json_t *device_json(const attune_device_info *info)
{
    return json_pack("{so sb so so so so so}", "id", json_text(info->id), "available", info->available, "name",
                     json_text(info->name), "driver", json_text(info->driver), "uuid", json_text(info->uuid), "reason",
                     json_text(info->reason), "limits", limits_json(&info->limits));
}

int cmd_devices(int argc, char **argv)
{
    bool json = false;
    const cli_option options[] = {{"--json", NULL, "as JSON", NULL, &json, NULL}};
    cli_result parsed = cli_parse("attune devices [--json]", options, 1, argc, argv, NULL);
    if (parsed != CLI_GO)
        return parsed == CLI_HELPED ? EXIT_GOOD : EXIT_USAGE;
    attune_instance *instance;
    uint32_t count;
    attune_status status = attune_instance_create(NULL, &instance);
    if (status == ATTUNE_OK)
        status = attune_device_count(instance, &count);
    json_t *list = json_array();
    for (uint32_t i = 0; status == ATTUNE_OK && i < count; i++) {
        attune_device_info info = {.struct_size = sizeof info};
        status = attune_device_describe(instance, i, &info);
        if (status != ATTUNE_OK)
            break;
        if (json)
            (void)json_array_append_new(list, device_json(&info));
        else
            print_text(&info);
    }
    if (status == ATTUNE_OK && json)
        cli_print_json(list);
    json_decref(list);
    if (status != ATTUNE_OK)
        cli_error("%s", attune_last_error());
    attune_instance_destroy(instance);
    return cli_exit_of(status);
}
