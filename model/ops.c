#include "model/ops.h"

#include <string.h>

const struct ops *ops_find(const char *name, struct error *err) {
    if (!strcmp(name, ref_ops.name))
        return &ref_ops;
    error_set(err, "--device %s: no such device in this build. Built in: %s", name, ref_ops.name);
    return NULL;
}
