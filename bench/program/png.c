/* SPDX-License-Identifier: MIT */
/* Pictures, through libpng's simplified API. */
#include "bench/program/cli.h"

#include <png.h>
#include <string.h>

bool png_write(FILE *file, const uint8_t *pixels, uint32_t width, uint32_t height, failure *why)
{
    png_image image;
    memset(&image, 0, sizeof image);
    image.version = PNG_IMAGE_VERSION;
    image.width = width;
    image.height = height;
    image.format = PNG_FORMAT_RGB;
    bool ok = png_image_write_to_stdio(&image, file, 0, pixels, 0, NULL) != 0;
    if (!ok)
        failure_set(why, "%s", image.message);
    png_image_free(&image);
    return ok;
}
