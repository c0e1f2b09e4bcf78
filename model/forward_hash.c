#include "model/forward_hash.h"

#include "model/workspace.h"

void forward_hashes_free(struct workspace *ws) {
    struct device *dev = ws->model->dev;
    struct error err; /* of a device that has failed: it writes no more */
    if (ws->hashes && dev->ops->hash_wait)
        dev->ops->hash_wait(dev, &err);
    dev->ops->free_host_visible(dev, ws->hashes, SHA256_BYTES * (size_t)ws->max_hashes);
    ws->hashes = NULL;
    ws->max_hashes = 0;
}

int forward_hash(struct workspace *ws, int n, struct error *err) {
    enum { AT_ONCE = 256 };
    struct device *dev = ws->model->dev;
    if (n > ws->max_hashes) {
        forward_hashes_free(ws);
        int room = n / AT_ONCE * AT_ONCE + AT_ONCE;
        ws->hashes =
            dev->ops->alloc_host_visible(dev, SHA256_BYTES * (size_t)room, "hashes of logits", err);
        ws->max_hashes = ws->hashes ? room : 0;
    }
    if (ws->hashes)
        dev->ops->hash_rows(dev, ws->hashes, ws->logits, n, ws->model->config.vocab_size);
    return ws->hashes ? 0 : -1;
}

const unsigned char *forward_hashes(const struct workspace *ws, size_t row) {
    return ws->hashes ? ws->hashes + row * SHA256_BYTES : NULL;
}
