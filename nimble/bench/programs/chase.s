# The sum of the values of a list of 1024 elements in a map. Each element has the
# distance of the next one from the beginning of the map, which nothing bounds.
    lddw_value r6, 0, 0
    mov r4, 1024
    mov r3, 0
next:
    add r3, r6
    ldxdw r2, [r3+8]
    ldxdw r3, [r3]
    add r0, r2
    add r4, -1
    jne r4, 0, next
    exit
