# cmake -DINPUT=file -DNAME=symbol -DOUTPUT=file.c -P embed.cmake: the file as NAME[] and NAME_bytes.
file(READ ${INPUT} hex HEX)
string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
file(WRITE ${OUTPUT} "#include <stddef.h>
extern const unsigned char ${NAME}[];
extern const size_t        ${NAME}_bytes;
const unsigned char ${NAME}[] = {
${hex}};
const size_t ${NAME}_bytes = sizeof(${NAME});
")
