/* kv_convert: copies a cache to one of another layout. */
#include "ref/ref.h"

void ref_kv_convert(struct device *dev, const struct kv_view *to, const struct kv_view *from,
                    int n_pages, int page_size, int n_kv_heads, int head_dim) {
    (void)dev;
    for (int64_t page = 0; page < n_pages; page++)
        for (int64_t position = 0; position < page_size; position++)
            for (int head = 0; head < n_kv_heads; head++) {
                int64_t y = kv_view_row(to, page, position, head);
                int64_t x = kv_view_row(from, page, position, head);
                for (int d = 0; d < head_dim; d++)
                    kv_store_bits(
                        to->data, to->type, y + kv_view_element(to, d),
                        kv_load_bits(from->data, from->type, x + kv_view_element(from, d)));
                if (kv_type_has_exponents(to->type))
                    to->exponents[kv_view_exponent(to, page, position, head)] =
                        from->exponents[kv_view_exponent(from, page, position, head)];
            }
}
