# Every model against its golden outputs.
foreach(model demo v2-lite v2 v3-fp8 kimi-k2 moonlight glm-flash)
  bt_test(model.reference.${model} SOURCE test_goldens_reference.c ARGS ${model} LABELS cpu TIMEOUT 120
          LIBS bt_model_reference PkgConfig::JANSSON)
endforeach()
