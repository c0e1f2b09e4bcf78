/*
 * large_checkpoint.h - a checkpoint with the shape of Qwen3-0.6B and random weights, for
 * measurements: 1.2 GB in $TMPDIR (/tmp), which are removed again.
 */
#ifndef SAMEBITS_LARGE_CHECKPOINT_H
#define SAMEBITS_LARGE_CHECKPOINT_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static void fail(const char *text) {
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, text);
    exit(2);
}

/* ---- a checkpoint with the shape of a known model ------------------------------------------- */

enum {
    LAYERS = 28,
    HIDDEN = 1024,
    HEADS = 16,
    KV_HEADS = 8,
    DIM = 128,
    FFN = 3072,
    VOCAB = 151936
};

static const char config[] =
    "{\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"vocab_size\": 151936,"
    " \"hidden_size\": 1024, \"num_hidden_layers\": 28, \"num_attention_heads\": 16,"
    " \"num_key_value_heads\": 8, \"head_dim\": 128, \"intermediate_size\": 3072,"
    " \"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000.0,"
    " \"max_position_embeddings\": 4096, \"tie_word_embeddings\": true}";

struct entry {
    const char *name; /* with %d for the layer */
    int n, k;         /* k = 0: a norm */
};

static const struct entry layer_entries[] = {
    {"self_attn.q_proj", HEADS *DIM, HIDDEN},
    {"self_attn.k_proj", KV_HEADS *DIM, HIDDEN},
    {"self_attn.v_proj", KV_HEADS *DIM, HIDDEN},
    {"self_attn.o_proj", HIDDEN, HEADS *DIM},
    {"mlp.gate_proj", FFN, HIDDEN},
    {"mlp.up_proj", FFN, HIDDEN},
    {"mlp.down_proj", HIDDEN, FFN},
    {"input_layernorm", HIDDEN, 0},
    {"post_attention_layernorm", HIDDEN, 0},
    {"self_attn.q_norm", DIM, 0},
    {"self_attn.k_norm", DIM, 0},
};
enum { N_ENTRIES = sizeof layer_entries / sizeof *layer_entries };

/* One tensor: its line of the header, or its data, bf16 from -1/32 to 1/32. */
static size_t put_tensor(FILE *header, FILE *data, const char *name, int n, int k, size_t at) {
    size_t count = (size_t)n * (size_t)(k ? k : 1);
    static uint16_t row[FFN];
    static uint32_t seed = 1;
    if (header)
        fprintf(header,
                "%s\"%s.weight\": {\"dtype\": \"BF16\", \"shape\": [%d%s%.0d], "
                "\"data_offsets\": [%zu, %zu]}",
                at ? ", " : "{", name, n, k ? ", " : "", k, at, at + 2 * count);
    for (size_t done = 0; data && done < count;) {
        size_t left = count - done < FFN ? count - done : FFN;
        for (size_t i = 0; i < left; i++) {
            seed = seed * 1664525u + 1013904223u;
            row[i] = (uint16_t)(k ? 0x3c00u + (seed >> 25) + (seed >> 9 & 0x8000u) : 0x3f80u);
        }
        done += fwrite(row, sizeof *row, left, data);
    }
    return at + 2 * count;
}

static void put_all(FILE *header, FILE *data) {
    char name[80];
    size_t at = put_tensor(header, data, "model.embed_tokens", VOCAB, HIDDEN, 0);
    at = put_tensor(header, data, "model.norm", HIDDEN, 0, at);
    for (int i = 0; i < LAYERS * N_ENTRIES; i++) {
        const struct entry *e = &layer_entries[i % N_ENTRIES];
        snprintf(name, sizeof name, "model.layers.%d.%s", i / N_ENTRIES, e->name);
        at = put_tensor(header, data, name, e->n, e->k, at);
    }
}

/* Writes the folder; path: of its tensors. */
static void write_checkpoint(char folder[128], char path[160]) {
    const char *tmp = getenv("TMPDIR");
    char *text, other[160];
    size_t length;
    snprintf(folder, 128, "%s/samebits-bench-XXXXXX", tmp ? tmp : "/tmp");
    if (!mkdtemp(folder))
        fail("cannot make a folder for the checkpoint");
    snprintf(other, sizeof other, "%s/config.json", folder);
    FILE *f = fopen(other, "w"), *header = open_memstream(&text, &length);
    if (!f || !header || fputs(config, f) < 0 || fclose(f))
        fail("cannot write the checkpoint");
    put_all(header, NULL);
    fputc('}', header);
    fclose(header);
    uint64_t bytes = length;
    snprintf(path, 160, "%s/model.safetensors", folder);
    f = fopen(path, "w");
    if (!f || !fwrite(&bytes, sizeof bytes, 1, f) || !fwrite(text, length, 1, f))
        fail("cannot write the checkpoint");
    put_all(NULL, f);
    if (fflush(f) || fsync(fileno(f)) || fclose(f)) /* later the disk is at rest */
        fail("cannot write the checkpoint");
    free(text);
}

static void remove_checkpoint(const char *folder, const char *path) {
    char other[160];
    snprintf(other, sizeof other, "%s/config.json", folder);
    unlink(other);
    unlink(path);
    rmdir(folder);
}

#endif
