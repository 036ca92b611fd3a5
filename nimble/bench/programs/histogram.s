# A histogram: counts 1024 numbers of 16 bits in 256 counters of a map. That a
# number is less than 256 is in the data alone, so nothing proves where its
# counter is. The result is the sum of the numbers.
    lddw_value r6, 0, 0
    mov r4, 0
next:
    mov r5, r1
    add r5, r4
    ldxh r3, [r5]
    add r0, r3
    lsh r3, 2
    add r3, r6
    ldxw r2, [r3]
    add r2, 1
    stxw [r3], r2
    add r4, 2
    jlt r4, 2048, next
    exit
