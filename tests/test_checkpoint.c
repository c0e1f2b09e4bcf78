/* model/files/checkpoint.h, and what config.h does with a folder: one file or shards, an index that
 * lies, tensors of another config. */
#include "model/files/checkpoint.h"
#include "model/files/folder.h"
#include "tests/checkpoint_writer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static const char small_config[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"num_hidden_layers\":2,\"hidden_size\":64,"
    "\"num_attention_heads\":4,\"intermediate_size\":96,\"vocab_size\":128,\"eos_token_id\":2}";

static FILE *create(const char *dir, const char *name) {
    char path[100];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    return file;
}

static void write_text(const char *dir, const char *name, const char *text) {
    FILE *file = create(dir, name);
    fputs(text, file);
    assert_int_equal(fclose(file), 0);
}

/* A safetensors file whose data are n_bytes bytes of value fill. */
static void write_weights(const char *dir, const char *name, const char *header, size_t n_bytes,
                          int fill) {
    FILE *file = create(dir, name);
    uint64_t length = strlen(header);
    assert_int_equal(fwrite(&length, 8, 1, file), 1);
    fputs(header, file);
    for (size_t i = 0; i < n_bytes; i++)
        putc(fill, file);
    assert_int_equal(fclose(file), 0);
}

static void assert_says(const struct error *err, const char *dir, const char *part) {
    if (strncmp(err->text, dir, strlen(dir)) || !strstr(err->text, part))
        fail_msg("\"%s\" does not say \"%s\"", err->text, part);
}

static void refuse(const char *dir, const char *part) {
    struct checkpoint *c = NULL;
    struct error err = {""};
    if (!checkpoint_open(&c, dir, &err))
        fail_msg("accepted, should say \"%s\"", part);
    assert_null(c);
    assert_says(&err, dir, part);
}

static struct checkpoint *accept(const char *dir) {
    struct checkpoint *c;
    struct error err = {""};
    if (checkpoint_open(&c, dir, &err))
        fail_msg("%s", err.text);
    return c;
}

/* "name": a BF16 tensor [2] at bytes begin to begin+4. */
#define PAIR(name, begin, end)                                                                     \
    "\"" name "\":{\"dtype\":\"BF16\",\"shape\":[2],\"data_offsets\":[" begin "," end "]}"

static void test_single_file(void **state) {
    (void)state;
    char dir[32];
    temporary_folder_make(dir);
    write_weights(dir, "model.safetensors",
                  "{\"k_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
                  "\"codes\":{\"dtype\":\"I8\",\"shape\":[5],\"data_offsets\":[12,17]},"
                  "\"scale\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[17,21]}}",
                  21, 0);
    write_text(dir, "model.safetensors.index.json", "not read when there is a single file");
    struct checkpoint *c = accept(dir);
    assert_int_equal(checkpoint_count(c), 3);
    assert_string_equal(checkpoint_at(c, 0)->name, "codes");
    assert_string_equal(checkpoint_at(c, 2)->name, "scale");
    assert_null(checkpoint_at(c, 3));
    assert_null(checkpoint_find(c, "k_proj"));
    const struct tensor *t = checkpoint_find(c, "k_proj.weight");
    struct error err = {""};
    for (size_t i = 0; i < 3; i++)
        assert_false(checkpoint_was_needed(c, i));
    assert_ptr_equal(checkpoint_need(c, "k_proj.weight", 2, (int64_t[]){2, 3}, &err), t);
    assert_ptr_equal(checkpoint_need(c, "scale", 0, NULL, &err), checkpoint_find(c, "scale"));
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(checkpoint_was_needed(c, i), i != 0);
    checkpoint_close(c);
    checkpoint_close(NULL);
    temporary_folder_remove(dir);
}

static void test_need_says_what_is_wrong(void **state) {
    (void)state;
    char dir[32], expected[300];
    temporary_folder_make(dir);
    write_weights(dir, "model.safetensors",
                  "{\"k\":{\"dtype\":\"BF16\",\"shape\":[2,3],\"data_offsets\":[0,12]},"
                  "\"codes\":{\"dtype\":\"I8\",\"shape\":[5],\"data_offsets\":[12,17]}}",
                  17, 0);
    struct checkpoint *c = accept(dir);
    struct error err = {""};
    static const struct {
        int n_dims;
        int64_t shape[8];
        const char *text;
    } wrong[] = {
        {2, {4, 3}, "[4,3]"}, {2, {2, 4}, "[2,4]"},      {2, {3, 2}, "[3,2]"},
        {1, {6}, "[6]"},      {3, {2, 3, 1}, "[2,3,1]"}, {0, {0}, "[]"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_null(checkpoint_need(c, "k", wrong[i].n_dims, wrong[i].shape, &err));
        snprintf(expected, sizeof expected,
                 "%s/model.safetensors: tensor \"k\" is [2,3], config.json says %s. Is this "
                 "checkpoint for another config?",
                 dir, wrong[i].text);
        assert_string_equal(err.text, expected);
    }
    int64_t large[8];
    for (int i = 0; i < 8; i++)
        large[i] = INT64_MAX; /* the longest text a shape can have */
    assert_null(checkpoint_need(c, "k", 8, large, &err));
    assert_says(&err, dir, "9223372036854775807]. Is this");
    assert_null(checkpoint_need(c, "codes", 1, (int64_t[]){5}, &err));
    assert_says(&err, dir, "/model.safetensors: tensor \"codes\" is I8; BF16, F16 and F32 are");
    assert_null(checkpoint_need(c, "nope", 1, (int64_t[]){5}, &err));
    assert_says(&err, dir, ": tensor \"nope\" is missing");
    checkpoint_close(c);
    temporary_folder_remove(dir);
}

static void write_shards(const char *dir) {
    write_weights(dir, "a.safetensors", "{" PAIR("x", "0", "4") "," PAIR("m", "4", "8") "}", 8, 1);
    write_weights(dir, "b.safetensors", "{" PAIR("b", "0", "4") "," PAIR("extra", "4", "8") "}", 8,
                  2);
}

static void write_index(const char *dir, const char *map) {
    char text[400];
    snprintf(text, sizeof text, "{\"metadata\":{\"total_size\":1},\"weight_map\":%s}", map);
    write_text(dir, "model.safetensors.index.json", text);
}

static void test_shards(void **state) {
    (void)state;
    char dir[32];
    temporary_folder_make(dir);
    write_shards(dir);
    write_index(dir, "{\"x\":\"a.safetensors\",\"b\":\"b.safetensors\",\"m\":\"a.safetensors\"}");
    struct checkpoint *c = accept(dir);
    assert_int_equal(checkpoint_count(c), 4);
    static const char *const names[] = {"b", "extra", "m", "x"};
    for (size_t i = 0; i < 4; i++)
        assert_string_equal(checkpoint_at(c, i)->name, names[i]);
    assert_int_equal(checkpoint_find(c, "x")->data[0], 1);
    assert_int_equal(checkpoint_find(c, "extra")->data[3], 2);
    assert_non_null(strstr(checkpoint_find(c, "b")->file, "/b.safetensors"));
    checkpoint_close(c);
    temporary_folder_remove(dir);
}

static void test_refuses_an_index_that_lies(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"{\"x\":\"a.safetensors\",\"q\":\"b.safetensors\"}",
         "model.safetensors.index.json: tensor \"q\" is not in b.safetensors"},
        {"{\"b\":\"a.safetensors\"}", "tensor \"b\" is not in a.safetensors"},
        {"{\"x\":\"a.safetensors\",\"y\":\"c.safetensors\"}",
         "/c.safetensors: no such file, but model.safetensors.index.json names it. Is the "
         "download complete?"},
        {"{\"x\":\"../a.safetensors\"}", "of this folder, not \"../a.safetensors\""},
        {"{\"x\":\"/tmp/a.safetensors\"}", "of this folder, not \"/tmp/a.safetensors\""},
        {"{\"x\":\"sub/a.safetensors\"}", "of this folder, not \"sub/a.safetensors\""},
        {"{\"x\":\"..\"}", "of this folder, not \"..\""},
        {"{\"x\":\".\"}", "of this folder, not \".\""},
        {"{\"x\":\"\"}", "of this folder, not \"\""},
        {"{\"x\":\"a.safetensors\\u0000b\"}", "of this folder, not \"a.safetensors\""},
        {"{\"x\":7}", "of this folder, not \"?\""},
        {"[]", "\"weight_map\" must be an object"},
        {"{\"x\":\"model.safetensors.index.json\"}", "Is it a safetensors file?"},
        {"{", "model.safetensors.index.json: line 1"},
    };
    char dir[32];
    temporary_folder_make(dir);
    write_shards(dir);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_index(dir, bad[i][0]);
        refuse(dir, bad[i][1]);
    }
    write_text(dir, "model.safetensors.index.json", "[]");
    refuse(dir, "\"weight_map\" must be an object");
    /* the third shard repeats a tensor of the first, which the index does not mention */
    write_weights(dir, "c.safetensors", "{" PAIR("x", "0", "4") "," PAIR("z", "4", "8") "}", 8, 3);
    write_index(dir, "{\"x\":\"a.safetensors\",\"z\":\"c.safetensors\"}");
    refuse(dir, "tensor \"x\" is also in ");
    write_weights(dir, "c.safetensors", "{" PAIR("z", "0", "4") "}", 3, 3);
    refuse(dir, "/c.safetensors: tensor \"z\" ends at byte 4 of the data, but there are only 3");
    temporary_folder_remove(dir);
}

static void test_refuses_folders_without_weights(void **state) {
    (void)state;
    refuse("nosuch", "nosuch: no such folder. --model needs a Hugging Face folder with "
                     "config.json, model.safetensors and tokenizer.json");
    char dir[32], link[50];
    temporary_folder_make(dir);
    refuse(dir, ": neither model.safetensors nor model.safetensors.index.json is there");
    write_text(dir, "pytorch_model.bin", "");
    refuse(dir, ": has pytorch_model.bin but no model.safetensors. Only the safetensors format");
    write_text(dir, "model.safetensors", "");
    refuse(dir, "/model.safetensors: the file is empty");
    temporary_folder_remove(dir);
    temporary_folder_make(dir);
    write_text(dir, "pytorch_model.bin.index.json", "{}");
    refuse(dir, ": has pytorch_model.bin but");
    snprintf(link, sizeof link, "%s/model.safetensors", dir);
    assert_int_equal(symlink("nowhere", link), 0); /* a download cache can look like this */
    refuse(dir, "/model.safetensors: No such file");
    temporary_folder_remove(dir);
}

static void load_says(const char *dir, const char *part) {
    struct model_config c;
    struct error err = {""};
    assert_int_equal(model_config_load(&c, dir, &err), -1);
    if (!strstr(err.text, part))
        fail_msg("\"%s\" does not say \"%s\"", err.text, part);
}

static void test_loads_a_folder(void **state) {
    (void)state;
    load_says("nosuch", "nosuch: no such folder. --model needs a Hugging Face folder with "
                        "config.json, model.safetensors and tokenizer.json");
    load_says("/dev/null", "/dev/null: no such folder");
    load_says("", "no such folder");
    char dir[32], slashed[40], config[50];
    temporary_folder_make(dir);
    snprintf(slashed, sizeof slashed, "%s//", dir);
    snprintf(config, sizeof config, "%s/config.json", dir);
    load_says(slashed, config); /* the slashes are not repeated */
    load_says(dir, "No such file");
    write_text(dir, "config.json", "{\"architectures\":[\"GPT2LMHeadModel\"]}");
    load_says(dir, "config.json: architecture \"GPT2LMHeadModel\" is not supported");

    struct model_config c;
    struct error err = {""};
    write_text(dir, "config.json", small_config);
    assert_int_equal(model_config_load(&c, slashed, &err), 0);
    assert_int_equal(c.n_stop_ids, 1);
    assert_int_equal(c.stop_ids[0], 2);
    write_text(dir, "generation_config.json", "{\"eos_token_id\":[7,8]}");
    assert_int_equal(model_config_load(&c, dir, &err), 0);
    assert_int_equal(c.n_stop_ids, 2);
    assert_int_equal(c.stop_ids[0], 7);
    write_text(dir, "generation_config.json", "{\"eos_token_id\":[7,8");
    load_says(dir, "generation_config.json: line 1");
    write_text(dir, "generation_config.json", "{\"eos_token_id\":999}");
    load_says(dir, "generation_config.json: \"eos_token_id\" is 999");
    char path[64];
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    assert_int_equal(remove(path), 0);
    assert_int_equal(symlink("generation_config.json", path), 0);
    load_says(dir, "generation_config.json: Too many levels of symbolic links");
    snprintf(path, sizeof path, "%s/config.json", dir);
    assert_int_equal(remove(path), 0);
    load_says(dir, "config.json: No such file or directory");
    assert_int_equal(mkdir(path, 0700), 0);
    load_says(dir, "config.json: Is a directory");
    assert_int_equal(rmdir(path), 0);
    temporary_folder_remove(dir);
}

static void test_joins_paths(void **state) {
    (void)state;
    struct error err = {""};
    char path[8];
    assert_int_equal(model_folder_path(path, sizeof path, "/", "a", &err), 0);
    assert_string_equal(path, "/a");
    assert_int_equal(model_folder_path(path, sizeof path, "abc/", "def", &err), 0);
    assert_string_equal(path, "abc/def");
    assert_int_equal(model_folder_path(path, sizeof path, "abcd", "def", &err), -1);
    assert_non_null(strstr(err.text, "too long"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_single_file),
        cmocka_unit_test(test_need_says_what_is_wrong),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_refuses_an_index_that_lies),
        cmocka_unit_test(test_refuses_folders_without_weights),
        cmocka_unit_test(test_loads_a_folder),
        cmocka_unit_test(test_joins_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
