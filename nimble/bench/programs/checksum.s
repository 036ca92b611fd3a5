# The 16-bit ones-complement sum of r2 bytes at r1, an even number.
    add r2, r1
next:
    ldxh r3, [r1]
    add r0, r3
    add r1, 2
    jlt r1, r2, next
fold:
    mov r3, r0
    rsh r3, 16
    and r0, 0xffff
    add r0, r3
    jgt r0, 0xffff, fold
    exit
