#include "tutorials/common/npy.h"

#include <errno.h>
#include <string.h>

enum { HEADER = 128 }; /* fixed, so that the shape can be written when it is known */

static int failed(const struct npy *n, struct error *err) {
    return error_set(err, "%s: cannot write: %s", n->output.path, strerror(errno));
}

static int write_header(struct npy *n, struct error *err) {
    char header[HEADER + 1];
    int used = snprintf(header, sizeof header,
                        "\x93NUMPY%c%c%c%c{'descr': '<f4', 'fortran_order': False, "
                        "'shape': (%zu, %zu), }",
                        1, '\0', HEADER - 10, '\0', n->rows, n->columns);
    memset(header + used, ' ', (size_t)(HEADER - used));
    header[HEADER - 1] = '\n';
    return fwrite(header, 1, HEADER, n->output.file) == HEADER ? 0 : failed(n, err);
}

int npy_open(struct npy *n, const char *path, size_t columns, struct error *err) {
    *n = (struct npy){.columns = columns};
    return output_open(&n->output, path, err) ? -1 : write_header(n, err);
}

int npy_row(struct npy *n, const float *row, struct error *err) {
    n->rows++;
    return fwrite(row, sizeof *row, n->columns, n->output.file) == n->columns ? 0 : failed(n, err);
}

int npy_close(struct npy *n, struct error *err) {
    if (!n->output.file)
        return 0;
    if (!(fseek(n->output.file, 0, SEEK_SET) ? failed(n, err) : write_header(n, err)))
        return output_keep(&n->output, err);
    output_discard(&n->output);
    return -1;
}
