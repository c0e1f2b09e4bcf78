LAB_7_REPLACES := scheduler/kv_paged.c scheduler/prefix_cache.c scheduler/scheduler.c
LAB_7_DEMO     := --device cpu --quick
