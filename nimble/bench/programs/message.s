# Handles the message of 64 bytes at r1: number of its handler, length of its
# words, source, six words. Adds up the words, and counts messages, mixes sums
# and keeps the largest one for each handler.
    ldxw r2, [r1]
    jgt r2, 7, drop
    ldxw r3, [r1+4]
    jne r3, 48, drop
    ldxdw r0, [r1+16]
    ldxdw r3, [r1+24]
    add r0, r3
    ldxdw r3, [r1+32]
    add r0, r3
    ldxdw r3, [r1+40]
    add r0, r3
    ldxdw r3, [r1+48]
    add r0, r3
    ldxdw r3, [r1+56]
    add r0, r3
    mul r2, 24
    lddw_value r4, 0, 0
    add r4, r2
    ldxdw r3, [r4]
    add r3, 1
    stxdw [r4], r3
    ldxdw r3, [r4+8]
    xor r3, r0
    stxdw [r4+8], r3
    ldxdw r3, [r4+16]
    jge r3, r0, done
    stxdw [r4+16], r0
done:
    exit
drop:
    mov r0, 0
    exit
