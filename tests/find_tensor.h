/* find_tensor.h - a tensor of a safetensors file by its name. */
#ifndef SAMEBITS_FIND_TENSOR_H
#define SAMEBITS_FIND_TENSOR_H

#include "model/files/safetensors.h"

#include <string.h>

/* NULL: there is none. */
static inline const struct tensor *find_tensor(const struct safetensors *s, const char *name) {
    for (size_t i = 0; i < safetensors_count(s); i++)
        if (!strcmp(safetensors_at(s, i)->name, name))
            return safetensors_at(s, i);
    return NULL;
}

#endif
