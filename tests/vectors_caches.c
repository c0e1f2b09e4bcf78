/* caches.jsonl: what a row becomes in a cache of each type, and what attention reads of a stored
 * row. */
#include "tests/vectors.h"

#include "model/attention/kv_type.h"
#include "ref/ref.h"

#include <math.h>
#include <stdlib.h>

enum { DIM = 8 };

/* A cache of one row on a device. */
static struct kv_views cache_of_one(struct test_device *t, enum kv_type type, float scale) {
    struct error err = {""};
    struct kv_views kv;
    bool is_fp8 = type == KV_E4M3 || type == KV_E5M2;
    struct kv_layout l = kv_layout_of(KV_NHD, false, 1, 1, 1, DIM);
    l.type = type;
    l.k_scale = l.v_scale = is_fp8 ? scale : 1;
    if (kv_views_of(&kv, &l, device_poisoned(t, 2 * DIM), device_poisoned(t, 2 * DIM),
                    device_poisoned(t, 1), device_poisoned(t, 1), &err))
        abort();
    return kv;
}

/* "stored": integers of bfp, bits of floats. */
static void put_stored(struct vectors *v, enum kv_type type, const void *data, int8_t e) {
    int32_t bits[DIM];
    for (int i = 0; i < DIM; i++) {
        uint32_t word = kv_load_bits(data, type, i);
        bits[i] = type == KV_BFP16 ? (int16_t)word : type == KV_BFP8 ? (int8_t)word : (int32_t)word;
    }
    vector_i32(v, "stored", bits, DIM);
    if (kv_type_has_exponents(type))
        vector_int(v, "e", e);
}

static void store(struct vectors *v, enum kv_type type, const float x[DIM], float scale) {
    struct test_device *t = &v->t;
    int64_t slot = 0;
    struct kv_views kv = cache_of_one(t, type, scale);
    const float *on_device = device_put(t, x, sizeof *x * DIM);
    t->ops->kv_append(t->dev, &kv, on_device, on_device, device_put(t, &slot, sizeof slot), 1, 1, 1,
                      DIM, 0, 1);
    vector_begin(v, "store");
    vector_text(v, "type", kv_type_name(type));
    if (kv.k.scale != 1)
        vector_float(v, "scale", kv.k.scale);
    vector_floats(v, "x", x, DIM);
    if (!vector_fault(v)) {
        void *data = device_get(t, kv.k.data, 2 * DIM);
        int8_t *e = device_get(t, kv.k.exponents, 1);
        put_stored(v, type, data, *e);
        free(data);
        free(e);
    }
    vector_end(v);
    device_clear(t);
}

/* Read by the reference: on other devices that is a part of attention. A row that cannot be read
 * is marked as a fault. */
static void load(struct vectors *v, enum kv_type type, const uint32_t bits[DIM], int8_t exponent) {
    unsigned char data[2 * DIM] = {0};
    int16_t q[DIM];
    struct kv_view view = {.data = data,
                           .exponents = &exponent,
                           .element_step = 1,
                           .x = 1,
                           .group_step = 1,
                           .type = type,
                           .scale = 1};
    for (int i = 0; i < DIM; i++)
        kv_store_bits(data, type, i, bits[i]);
    int e = ref_load_row(q, &view, 0, 0, 0, DIM);
    vector_begin(v, "load");
    vector_text(v, "type", kv_type_name(type));
    put_stored(v, type, data, exponent);
    if (e > BFP_MAX_EXPONENT) {
        vector_int(v, "fault", 1);
    } else {
        vector_i16(v, "q", q, DIM);
        vector_int(v, "exponent", e);
    }
    vector_end(v);
}

static void stores(struct vectors *v, enum kv_type type) {
    static const float rows[][DIM] = {
        {0, -0.0f, 0, 0, 0, 0, 0, 0},
        {1, -1, 0.5f, 0.3f, -0.3f, 0x1p-149f, -0x1p-149f, 0x1p-100f},
        {0x1.fcp0f, 0x1.fdp0f, 0x1.fep0f, 0x1.ffp0f, 1.5f, 0x1.8p-7f, 0x1.8p-8f, 0x1p-7f},
        {0x1.fep0f, 1, 0x1p-6f, 0x1p-7f, -0x1p-7f, 0x1.8p-6f, 0x1.8p-7f, 0x1.000002p-7f},
        {0x1.08p0f, 0x1.18p0f, 0x1.1p0f, 0x1.1800002p0f, 0x1.2p0f, 0x1.3p0f, 0x1.002p0f,
         0x1.006p0f},
        {0x1p-6f, 0x1.fp-7f, 0x1p-9f, 0x1p-10f, 0x1.8p-10f, 0x1.8p-9f, -0x1p-10f, -0x1.2p-10f},
        {0x1p-14f, 0x1p-16f, 0x1p-17f, 0x1.8p-17f, 0x1p-24f, 0x1p-25f, 0x1.8p-25f, -0x1.8p-24f},
        {448, 463.9f, 464, 480, -448, -1e9f, 416, 432},
        {57344, 61439.9f, 61440, 65504, -57344, 53248, 49152, 1},
        {65504, 65519.99f, 1, 2048, 2049, 2051, -2049, 0},
        {65520, 0, 0, 0, 0, 0, 0, 0},
        {0x1.fffffep125f, 0x1.fep125f, 0x1.ff8p0f, 0x1.ff7ffep0f, 0x1.008p0f, 0x1.018p0f, 0, 0},
        {0x1p126f, 0, 0, 0, 0, 0, 0, 0},
        {0x1.fcp126f, 1, 0, 0, 0, 0, 0, 0},
        {0x1.fep126f, 1, 0, 0, 0, 0, 0, 0},
        {0x1.fffffep127f, 1, 0, 0, 0, 0, 0, 0},
        {1, INFINITY, 0, 0, 0, 0, 0, 0},
        {1, NAN, 0, 0, 0, 0, 0, 0},
    };
    float x[DIM];
    if (type == KV_E4M3 || type == KV_E5M2) {
        for (int d = 0; d < DIM; d++) /* ties, where x is divided and not multiplied by 1 / 61 */
            x[d] = 61 * (1 + (float)(2 * d + 1) / (type == KV_E4M3 ? 16 : 8));
        store(v, type, x, 61);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        store(v, type, rows[i], 1);
    for (int kind = 0; kind < N_DISTRIBUTIONS; kind++) {
        random_fill(&v->random, x, DIM, (enum distribution)kind);
        store(v, type, x, 1);
        if (type == KV_E4M3 || type == KV_E5M2)
            store(v, type, x, kind % 2 ? 0.013f : 3);
    }
}

static void loads(struct vectors *v, enum kv_type type) {
    static const uint32_t of_8[][DIM] = {
        {0x00, 0x80, 0x01, 0x81, 0x02, 0x07, 0x08, 0x10},
        {0x38, 0xb8, 0x3c, 0x40, 0x01, 0x20, 0x30, 0x77},
        {0x7b, 0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0xfb},
        {0x7c, 0x01, 0, 0, 0, 0, 0, 0},
        {0x7e, 0x01, 0x09, 0x11, 0x19, 0x21, 0x29, 0x31},
        {0x7f, 0, 0, 0, 0, 0, 0, 0},
    };
    static const uint32_t of_16[][DIM] = {
        {0x0000, 0x8000, 0x0001, 0x8001, 0x03ff, 0x0400, 0x0401, 0x0800},
        {0x3c00, 0xbc00, 0x3c01, 0x4000, 0x0001, 0x2000, 0x3555, 0x7bff},
        {0x7c00, 1, 2, 3, 0, 0, 0, 0},
        {0x7e00, 0, 0, 0, 0, 0, 0, 0},
        {0x7e80, 0x7e00, 0x7d00, 0x7c00, 0x7b00, 0x7a00, 0x7900, 0x7780},
        {0x7f80, 0, 0, 0, 0, 0, 0, 0},
        {0x0080, 0x007f, 0x0001, 0x8080, 0x0100, 0, 0, 0},
    };
    uint32_t bits[DIM];
    bool is_8 = kv_type_bytes(type) == 1;
    for (size_t i = 0; i < (is_8 ? sizeof of_8 / sizeof *of_8 : sizeof of_16 / sizeof *of_16); i++)
        load(v, type, is_8 ? of_8[i] : of_16[i], (int8_t)(i * 7));
    for (int i = 0; i < 6; i++) {
        for (int d = 0; d < DIM; d++)
            bits[d] = (uint32_t)random_int(&v->random, 0, is_8 ? 0x6f : 0x6fff);
        load(v, type, bits, (int8_t)random_int(&v->random, -100, 127));
    }
}

void vectors_caches(struct vectors *v, const char *folder) {
    (void)folder;
    for (int type = 0; type < N_KV_TYPES; type++) {
        stores(v, (enum kv_type)type);
        if (type != KV_BFP16)
            loads(v, (enum kv_type)type);
    }
}
