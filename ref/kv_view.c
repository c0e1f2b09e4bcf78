/* kv_store and kv_convert: caches of any layout. */
#include "ref/ref.h"

static void store_row(struct device *dev, const struct kv_view *to, int16_t *mantissas,
                      const float *x, int64_t page, int64_t position, int head, int head_dim,
                      int site, int token) {
    int16_t *row = to->mantissas + kv_view_row(to, page, position, head);
    to->exponents[kv_view_exponent(to, page, position, head)] =
        ref_snap_or_fault(dev, mantissas, x, head_dim, site, token);
    for (int d = 0; d < head_dim; d++)
        row[kv_view_element(to, d)] = mantissas[d];
}

void ref_kv_store(struct device *dev, const struct kv_views *kv,
                  const float *k,       /* [n_tokens, n_kv_heads, head_dim] */
                  const float *v,       /* [n_tokens, n_kv_heads, head_dim] */
                  const int64_t *slots, /* [n_tokens] */
                  int n_tokens, int page_size, int n_kv_heads, int head_dim, int site_k,
                  int site_v) {
    int16_t *mantissas =
        ref_scratch(dev, SCRATCH_Q, sizeof *mantissas * (size_t)head_dim, "kv_store");
    for (int i = 0; i < n_tokens * n_kv_heads && mantissas; i++) {
        int token = i / n_kv_heads, head = i % n_kv_heads;
        size_t row = (size_t)i * (size_t)head_dim;
        if (slots[token] < 0)
            continue;
        int64_t page = slots[token] / page_size, position = slots[token] % page_size;
        store_row(dev, &kv->k, mantissas, k + row, page, position, head, head_dim, site_k, token);
        store_row(dev, &kv->v, mantissas, v + row, page, position, head, head_dim, site_v, token);
    }
}

void ref_kv_convert(struct device *dev, const struct kv_view *to, const struct kv_view *from,
                    int n_pages, int page_size, int n_kv_heads, int head_dim) {
    (void)dev;
    for (int64_t page = 0; page < n_pages; page++)
        for (int64_t position = 0; position < page_size; position++)
            for (int head = 0; head < n_kv_heads; head++) {
                int16_t *y = to->mantissas + kv_view_row(to, page, position, head);
                const int16_t *x = from->mantissas + kv_view_row(from, page, position, head);
                for (int d = 0; d < head_dim; d++)
                    y[kv_view_element(to, d)] = x[kv_view_element(from, d)];
                to->exponents[kv_view_exponent(to, page, position, head)] =
                    from->exponents[kv_view_exponent(from, page, position, head)];
            }
}
