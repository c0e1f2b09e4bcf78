/* What the predicates of causes ask of a finding. */
#include "tests/labs/lab.h"

#include <stdlib.h>
#include <string.h>

bool lab_is(const struct lab_finding *f, const char *check, const char *label) {
    return !strcmp(f->check->name, check) && !strncmp(f->label, label, strlen(label));
}

bool lab_failed(const struct lab_finding *f, const char *check) {
    for (int i = 0; i < f->lab->n_checks; i++)
        if (!strcmp(f->lab->checks[i].name, check))
            return f->all[i].how != LAB_PASSED;
    return false;
}

double lab_expected(const struct lab_finding *f) {
    return atof(f->expected);
}

double lab_found(const struct lab_finding *f) {
    return atof(f->found);
}
