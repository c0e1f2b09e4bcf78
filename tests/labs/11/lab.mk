LAB_11_REPLACES := ref/kv_row.c ref/kv_append.c
LAB_11_DEMO     := --device cpu --quick
LAB_11_INLINES  := kv_bfp8_exponent kv_stored_exponent kv_bits kv_integer
