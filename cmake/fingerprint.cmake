# cmake -DROOT=folder -DFILES=file;... -DNAME=symbol -DOUTPUT=file.h -P fingerprint.cmake: a number of all that the files, named from the
# folder, hold, in hex digits, as the text NAME.
set(all)
foreach(file ${FILES})
  file(SHA256 ${ROOT}/${file} hash)
  string(APPEND all "${file} ${hash}\n")
endforeach()
string(SHA256 hash "${all}")
string(SUBSTRING ${hash} 0 12 hash)
file(WRITE ${OUTPUT} "#define ${NAME} \"${hash}\"\n")
