#include "model/error.h"

#include <stdarg.h>
#include <stdio.h>

int error_set(struct error *err, const char *format, ...) {
    if (!err)
        return -1;
    va_list args;
    va_start(args, format);
    vsnprintf(err->text, sizeof err->text, format, args);
    va_end(args);
    for (unsigned char *c = (unsigned char *)err->text; *c; c++)
        if (*c < 0x20 || *c == 0x7f)
            *c = '?';
    return -1;
}
