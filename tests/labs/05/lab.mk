LAB_5_REPLACES := scheduler/block_allocator.c
LAB_5_DEMO     := --device cpu --quick --kv-memory 64M
