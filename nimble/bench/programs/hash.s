# The sum of the values of the keys 1 to 256 in a hash table, laid out and
# searched as kernel/abi/slot/margay_hash.h does it: 1024 slots of length, value and
# a key of 8 bytes.
    lddw_value r9, 0, 0
    mov r6, 256
next:
    lddw r3, 0x9e3779b97f4a7c15
    mov r2, r6
    mul r2, r3
    mov r3, r2
    rsh r3, 29
    xor r2, r3
    mov r3, r2
    rsh r3, 32
    xor r2, r3
    mov r5, 16
probe:
    and r2, 1023
    mov r4, r2
    mul r4, 24
    add r4, r9
    ldxdw r3, [r4+16]
    jeq r3, r6, found
    add r2, 1
    add r5, -1
    jne r5, 0, probe
    ja absent
found:
    ldxdw r3, [r4+8]
    add r7, r3
absent:
    add r6, -1
    jne r6, 0, next
    mov r0, r7
    exit
