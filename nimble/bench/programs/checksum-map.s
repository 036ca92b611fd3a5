# The sum of checksum, over 1500 bytes of a map and by an index whose bounds
# can be proved.
    lddw_value r6, 0, 0
    mov r4, 0
next:
    mov r5, r6
    add r5, r4
    ldxh r3, [r5]
    add r0, r3
    add r4, 2
    jlt r4, 1500, next
fold:
    mov r3, r0
    rsh r3, 16
    and r0, 0xffff
    add r0, r3
    jgt r0, 0xffff, fold
    exit
