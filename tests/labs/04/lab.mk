LAB_4_REPLACES := scheduler/scheduler.c
LAB_4_DEMO     := --device cpu --quick
